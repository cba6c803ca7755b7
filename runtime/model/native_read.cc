// The reader of the native format's head. It trusts nothing: counts are checked against the bytes that remain before
// anything is stored, arithmetic is checked, every tensor must be there exactly once and whole, everything must lie inside
// the file, in order, without overlap; and the head's checksum must hold.
#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "runtime/model/byte_reader.h"
#include "runtime/model/gguf.h"
#include "runtime/model/native_format.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

constexpr uint64_t kLeastPage = 4u << 10, kMostPage = 2u << 20;
// As for the index of a GGUF file: tables beyond that are of no usable model.
constexpr uint64_t kMostTableBytes = uint64_t{256} << 20;

// XXH64 of the bytes that the reader has passed, read a second time.
uint64_t checksum_of_head(const ByteReader::ReadAt& read_at, ByteReader& reader, uint64_t bytes) {
    NativeChecksum checksum;
    std::vector<std::byte> chunk(64u << 10);
    for (uint64_t at = 0; at < bytes;) {
        const size_t want = static_cast<size_t>(std::min<uint64_t>(chunk.size(), bytes - at));
        const size_t n = read_at(at, std::span(chunk).first(want));
        if (n == 0) reader.fail_at(at, "the file has become shorter while it was read");
        for (uint64_t i = kNativeHeaderBytes - 8; i < kNativeHeaderBytes; ++i)
            if (i >= at && i < at + n) chunk[i - at] = std::byte{0};
        checksum.add(std::span(chunk).first(n));
        at += n;
    }
    return checksum.value();
}

}  // namespace

// Friend of GgufFile, which it fills.
class NativeReader {
  public:
    NativeReader(std::string name, uint64_t file_size, const ByteReader::ReadAt& read_at)
        : name_(std::move(name)), file_size_(file_size), read_at_(read_at), reader_(name_, file_size, read_at) {}

    GgufFile read() {
        read_header();
        GgufFile file = read_index();
        (void)reader_.text(index_bytes_);
        (void)reader_.text(reader_.align_up(index_bytes_, 8, "the index") - index_bytes_);
        const size_t n_tensors = file.tensors_.size();
        reader_.need(reader_.mul(n_kept_, kKeptBytes, "the table"), "the table of kept tensors");
        for (uint32_t i = 0; i < n_kept_; ++i) read_kept(file);
        reader_.need(reader_.mul(n_parts_, kPartBytes, "the table"), "the table of parts");
        for (uint32_t i = 0; i < n_parts_; ++i) read_part(file);
        check_complete(file);
        if (index_parts(&table_, n_tensors) != n_checksums_) {
            reader_.fail_at(40, std::to_string(n_checksums_) + " checksums are announced, which is not what the parts have");
        }
        reader_.need(reader_.mul(n_checksums_, 8, "the table"), "the checksums");
        table_.checksums.reserve(n_checksums_);
        for (uint64_t i = 0; i < n_checksums_; ++i) table_.checksums.push_back(reader_.number<uint64_t>());
        const uint64_t head = reader_.position();
        if (first_data_ < head) reader_.fail_at(first_data_, "data overlaps the tables, which end at byte " + std::to_string(head));
        if (checksum_of_head(read_at_, reader_, head) != checksum_) {
            reader_.fail_at(56, "the checksum of header, index and tables is wrong: the file is damaged, make it anew");
        }
        place(file);
        return file;
    }

  private:
    void read_header() {
        (void)reader_.number<uint32_t>();  // the magic, which brought us here
        const auto version = reader_.number<uint32_t>();
        if (version != kNativeVersion) {
            reader_.fail_at(4, "version " + std::to_string(version) + " of the native format is not supported (" +
                                   std::to_string(kNativeVersion) + " is); convert the model anew");
        }
        const auto bytes = reader_.number<uint64_t>();
        if (bytes != file_size_) {
            reader_.fail_at(8, "the file should have " + std::to_string(bytes) + " bytes and has " + std::to_string(file_size_) +
                                   (bytes > file_size_ ? ": it is truncated" : ": something was added") + "; fetch or make it anew");
        }
        index_bytes_ = reader_.number<uint64_t>();
        table_.source_bytes = reader_.number<uint64_t>();
        n_kept_ = reader_.number<uint32_t>();
        n_parts_ = reader_.number<uint32_t>();
        n_checksums_ = reader_.number<uint64_t>();
        table_.page = reader_.number<uint32_t>();
        if (!std::has_single_bit(table_.page) || table_.page < kLeastPage || table_.page > kMostPage)
            reader_.fail_at(48, "a page of " + std::to_string(table_.page) + " bytes; powers of two from 4 KiB to 2 MiB are possible");
        if (const auto zero = reader_.number<uint32_t>(); zero != 0) reader_.fail_at(52, "a zero is " + std::to_string(zero));
        checksum_ = reader_.number<uint64_t>();
        table_.index_bytes = index_bytes_;
        if (index_bytes_ > reader_.remaining())
            reader_.fail_at(16, "an index of " + std::to_string(index_bytes_) + " bytes, where " + std::to_string(reader_.remaining()) + " remain");
        if (index_bytes_ > kMostTableBytes || n_checksums_ > kMostTableBytes / 8 || n_parts_ > kMostTableBytes / sizeof(NativePart) ||
            n_kept_ > kMostTableBytes / sizeof(NativeKept))
            reader_.fail_at(16, "index or tables of more than " + std::to_string(kMostTableBytes >> 20) + " MiB; no usable model has that");
    }

    // The GGUF inside, as if it were a file of its own.
    GgufFile read_index() {
        ByteReader inner(name_ + ": GGUF index inside", table_.source_bytes, [this](uint64_t offset, std::span<std::byte> out) {
            if (offset >= index_bytes_) return size_t{0};
            return read_at_(kNativeHeaderBytes + offset, out.first(static_cast<size_t>(std::min<uint64_t>(out.size(), index_bytes_ - offset))));
        });
        GgufFile file = GgufFile::read(inner, table_.source_bytes, name_);
        if (file.data_offset_ != index_bytes_)
            reader_.fail_at(16, "the index takes " + std::to_string(file.data_offset_) + " bytes, not " + std::to_string(index_bytes_));
        for (const GgufTensor& tensor : file.tensors_) {
            if (tensor.dims[3] != 1) reader_.fail_at(kNativeHeaderBytes, "tensor " + quoted(tensor.name) + " has four dimensions");
        }
        seen_.assign(file.tensors_.size(), 0);
        return file;
    }

    size_t tensor_number(const GgufFile& file) {
        const uint64_t at = reader_.position();
        const auto tensor = reader_.number<uint32_t>();
        if (tensor >= file.tensors_.size())
            reader_.fail_at(at, "tensor number " + std::to_string(tensor) + ", where there are " + std::to_string(file.tensors_.size()));
        return tensor;
    }

    // Data comes in the order of the tables.
    void take(uint64_t at, uint64_t offset, uint64_t bytes, uint64_t alignment, const std::string& what) {
        if (offset % alignment != 0) reader_.fail_at(at, what + " lies at " + std::to_string(offset) + ", no multiple of " + std::to_string(alignment));
        if (offset < data_end_) reader_.fail_at(at, what + " lies at " + std::to_string(offset) + ", inside what comes before it");
        const uint64_t end = reader_.add(offset, bytes, "the data");
        if (end > file_size_)
            reader_.fail_at(at, what + " ends at byte " + std::to_string(end) + " but the file has " + std::to_string(file_size_));
        first_data_ = std::min(first_data_, offset);
        data_end_ = end;
    }

    void read_kept(GgufFile& file) {
        const uint64_t at = reader_.position();
        NativeKept kept;
        kept.tensor = static_cast<uint32_t>(tensor_number(file));
        const GgufTensor& tensor = file.tensors_[kept.tensor];
        const std::string what = "tensor " + quoted(tensor.name);
        const auto number = reader_.number<uint32_t>();
        const kernels::TypeTraits* const traits = kernels::find_traits(number);
        if (traits == nullptr || tensor.dims[0] % traits->block_elements != 0)
            reader_.fail_at(at + 4, what + " has type " + std::to_string(number) + ", which is none, or not for its rows");
        kept.type = traits->type;
        kept.offset = reader_.number<uint64_t>();
        kept.bytes = reader_.number<uint64_t>();
        kept.checksum = reader_.number<uint64_t>();
        uint64_t bytes = reader_.mul(tensor.dims[0] / traits->block_elements, traits->block_bytes, "a tensor");
        bytes = reader_.mul(bytes, tensor.rows(), "a tensor");
        if (kept.bytes != bytes) reader_.fail_at(at + 16, what + " has " + std::to_string(kept.bytes) + " bytes; its shape takes " + std::to_string(bytes));
        take(at + 8, kept.offset, kept.bytes, kKeptAlignment, what);
        if (seen_[kept.tensor]++ != 0) reader_.fail_at(at, what + " is there twice");
        table_.kept.push_back(kept);
    }

    void read_part(GgufFile& file) {
        const uint64_t at = reader_.position();
        NativePart part;
        part.tensor = static_cast<uint32_t>(tensor_number(file));
        const GgufTensor& tensor = file.tensors_[part.tensor];
        const std::string what = "tensor " + quoted(tensor.name);
        part.expert = reader_.number<uint32_t>();
        part.band_rows = reader_.number<uint32_t>();
        const auto fine_steps = reader_.number<uint32_t>();
        part.offset = reader_.number<uint64_t>();
        part.cols = tensor.dims[0];
        part.rows = tensor.dims[1];
        if (part.cols % kNativeGroup != 0) reader_.fail_at(at, what + " has rows of " + std::to_string(part.cols) + ", which 32 does not divide");
        if (part.expert >= tensor.dims[2]) reader_.fail_at(at + 4, what + " has no expert " + std::to_string(part.expert));
        if (part.band_rows == 0 || part.band_rows > part.rows)
            reader_.fail_at(at + 8, what + " has bands of " + std::to_string(part.band_rows) + " rows and " + std::to_string(part.rows) + " rows in all");
        if (fine_steps == 0 || fine_steps > kernels::kMostFineSteps)
            reader_.fail_at(at + 12, what + " has " + std::to_string(fine_steps) + " steps of level 6 in one of level 4, not 1 to 4");
        part.fine_steps = static_cast<uint8_t>(fine_steps);
        // A row takes less than 2 bytes a weight, padding less than a page a run: after this nothing below can overflow.
        const uint64_t weights = reader_.mul(reader_.mul(part.rows, part.cols, "a part"), 2, "a part");
        (void)reader_.add(weights, reader_.mul(reader_.mul(part.bands(), kRuns, "a part"), table_.page, "a part"), "a part");
        if (part.bands() > n_checksums_) reader_.fail_at(at + 8, what + " has more bands than there are checksums");
        take(at + 16, part.offset, part_bytes(part, table_.page), table_.page, what);
        ++seen_[part.tensor];
        table_.parts.push_back(part);
    }

    void check_complete(const GgufFile& file) {
        std::vector<uint8_t> kept(file.tensors_.size());
        for (const NativeKept& k : table_.kept) kept[k.tensor] = 1;
        for (const NativePart& p : table_.parts) {
            if (kept[p.tensor] != 0) reader_.fail("tensor " + quoted(file.tensors_[p.tensor].name) + " is there twice");
        }
        for (size_t t = 0; t < file.tensors_.size(); ++t) {
            const uint64_t wanted = kept[t] != 0 ? 1 : file.tensors_[t].dims[2];
            if (seen_[t] != wanted)
                reader_.fail("tensor " + quoted(file.tensors_[t].name) + " is there " + std::to_string(seen_[t]) + " times of " + std::to_string(wanted));
        }
        index_parts(&table_, file.tensors_.size());
        for (size_t t = 0; t < file.tensors_.size(); ++t) {
            uint32_t expert = 0;
            for (const uint32_t p : table_.parts_of(t)) {
                if (table_.parts[p].expert != expert++) reader_.fail("an expert of " + quoted(file.tensors_[t].name) + " is there twice");
            }
        }
    }

    // The index now speaks of this file.
    void place(GgufFile& file) {
        for (GgufTensor& tensor : file.tensors_) tensor.bytes = 0;
        for (const NativeKept& kept : table_.kept) {
            GgufTensor& tensor = file.tensors_[kept.tensor];
            tensor.type = kept.type;
            tensor.offset = kept.offset;
            tensor.bytes = kept.bytes;
        }
        for (const NativePart& part : table_.parts) {
            GgufTensor& tensor = file.tensors_[part.tensor];
            if (tensor.bytes == 0) tensor.offset = part.offset;
            tensor.bytes += part_bytes(part, table_.page);
        }
        file.file_size_ = file_size_;
        file.data_offset_ = first_data_ == UINT64_MAX ? reader_.position() : first_data_;
        file.parts_ = {{name_, 0, file_size_, file.data_offset_, file.tensors_.size()}};
        file.native_ = std::make_shared<const NativeTable>(std::move(table_));
    }

    std::string name_;
    uint64_t file_size_;
    const ByteReader::ReadAt& read_at_;
    ByteReader reader_;
    NativeTable table_;
    uint64_t index_bytes_ = 0, n_checksums_ = 0, checksum_ = 0;
    uint32_t n_kept_ = 0, n_parts_ = 0;
    uint64_t data_end_ = 0, first_data_ = UINT64_MAX;
    std::vector<uint64_t> seen_;  // by tensor: how often it is kept, or parts of it are there
};

GgufFile GgufFile::read_any(const ReadAt& read_at, uint64_t file_size, const std::string& name) {
    std::byte magic[4] = {};
    const bool native = file_size >= sizeof magic && read_at(0, magic) == sizeof magic &&
                        std::string_view(reinterpret_cast<const char*>(magic), sizeof magic) == "WEIR";
    if (native) return NativeReader(name, file_size, read_at).read();
    ByteReader reader(name, file_size, read_at);
    return read(reader, file_size, name);
}

}  // namespace weir
