// How far a tuning has come, in a file beside the model: what enters the next layer, of the reference and of each level
// that is tuned, and the scales of the layers that are done. A layer counts when finish_layer() has returned; one that
// was broken off is done again. Layers read what enters from one half of the file and write what leaves to the other.
//
//   header, 64 bytes: magic, version, key, layers done, checksum of these
//   states, two halves: [half][stream][samples][tokens][dim] floats
//   scales: as whoever writes them lays them out
//
// One owner. Throws Error that names the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weir {

class TuneJournal {
  public:
    // key: of everything that the tuning depends on. A file with another key is refused, or with `anew` replaced, as is
    // one that has the key. While this exists no other process can open the file.
    TuneJournal(const std::string& path, uint64_t key, uint64_t stream_bytes, size_t streams, uint64_t scale_bytes,
                bool anew);
    ~TuneJournal();
    TuneJournal(const TuneJournal&) = delete;
    TuneJournal& operator=(const TuneJournal&) = delete;
    static uint64_t bytes(uint64_t stream_bytes, size_t streams, uint64_t scale_bytes);

    size_t layers_done() const { return done_; }
    // at: floats from the start of the stream.
    void read_entering(size_t stream, uint64_t at, std::span<float> out) const;
    void read_leaving(size_t stream, uint64_t at, std::span<float> out) const;
    void write_leaving(size_t stream, uint64_t at, std::span<const float> in);
    // Of the first layer: before anything left another.
    void write_entering(size_t stream, uint64_t at, std::span<const float> in);
    void read_scales(uint64_t at, std::span<std::byte> out) const;
    void write_scales(uint64_t at, std::span<const std::byte> in);
    void finish_layer();
    // Everything is done and elsewhere: the file goes with the object.
    void discard() { discard_ = true; }

  private:
    uint64_t state_at(size_t half, size_t stream, uint64_t at) const;
    void read(uint64_t offset, std::span<std::byte> out) const;
    void write(uint64_t offset, std::span<const std::byte> in);
    void write_header();
    [[noreturn]] void fail(const std::string& what) const;

    const std::string path_;
    const uint64_t key_, stream_bytes_;
    const size_t streams_;
    int fd_ = -1;
    size_t done_ = 0;
    bool discard_ = false;
};

}  // namespace weir
