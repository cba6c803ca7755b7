#include "runtime/model/model_map.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

struct Step {
    std::string name;
    bool experts;
    size_t layer;
};

std::vector<Step> walk_order(const ModelConfig& config) {
    const std::vector<LayerTensor> parts = layer_tensors(config);
    std::vector<Step> steps;
    for (size_t layer = 0; layer < config.n_layers; ++layer) {
        for (const LayerTensor& part : parts) {
            if (part.is_matrix()) steps.push_back({layer_tensor_name(layer, part.name), part.experts != 0, layer});
        }
    }
    steps.push_back({config.tied_head ? "token_embd.weight" : "output.weight", false, config.n_layers});
    return steps;
}

// Appends stretches of the file to the image, as they come in the walk.
class Image {
  public:
    Image(ModelMap* map, uint64_t page) : map_(*map), page_(page) {}

    // The place of the stretch's first byte.
    uint64_t add(uint64_t offset, uint64_t bytes) {
        const uint64_t begin = offset / page_ * page_;
        const uint64_t end = (offset + bytes + page_ - 1) / page_ * page_;
        PlacedRange* last = map_.ranges.empty() ? nullptr : &map_.ranges.back();
        const bool follows = last != nullptr && offset >= previous_end_ && begin <= last->file_offset + last->bytes &&
                             begin >= last->file_offset;
        if (follows) {
            // What came before ends in the page where this begins: they share it.
            last->bytes = std::max(last->bytes, end - last->file_offset);
        } else {
            map_.ranges.push_back({map_.image_bytes, begin, end - begin});
            last = &map_.ranges.back();
        }
        map_.image_bytes = last->place + last->bytes;
        previous_end_ = offset + bytes;
        return last->place + (offset - last->file_offset);
    }

  private:
    ModelMap& map_;
    const uint64_t page_;
    uint64_t previous_end_ = 0;  // in the file
};

// One part of a native file, at a level.
PlacedTensor place_part(Image& image, const GgufTensor& tensor, const NativePart& part, uint64_t page, kernels::Level level) {
    PlacedTensor placed;
    placed.tensor = &tensor;
    placed.part = &part;
    for (uint64_t b = 0; b < part.bands(); ++b) {
        const std::array<NativeRun, kRuns> runs = band_runs(part, b, page);
        PlacedBand band;
        uint64_t end = 0;
        for (size_t r = 0; r < kRuns; ++r) {
            if (!reads_run(level, r)) continue;
            band.run_place[r] = image.add(runs[r].offset, runs[r].bytes);
            if (end == 0) band.place = band.run_place[r];
            end = band.run_place[r] + runs[r].bytes;
        }
        band.bytes = end - band.place;
        placed.piece_bytes = std::max(placed.piece_bytes, band.bytes);
        placed.bands.push_back(band);
    }
    placed.place = placed.bands.front().place;
    placed.bytes = placed.bands.back().place + placed.bands.back().bytes - placed.place;
    return placed;
}

}  // namespace

ModelMap build_model_map(const GgufFile& file, const ModelConfig& config, uint64_t page, bool experts_apart,
                         kernels::Level level) {
    ModelMap map;
    map.embedding = &file.tensor("token_embd.weight");
    Image image(&map, page);
    const NativeTable* const native = file.native();
    const std::vector<Step> steps = walk_order(config);
    for (size_t i = 0; i < steps.size(); ++i) {
        const GgufTensor& tensor = file.tensor(steps[i].name);
        if (steps[i].experts && experts_apart) {
            PlacedTensor placed;
            placed.tensor = &tensor;
            placed.place = map.image_bytes;
            placed.experts = true;
            placed.layer = steps[i].layer;
            placed.bytes = tensor.bytes;
            placed.piece_bytes = kernels::row_bytes(tensor.type, tensor.dims[0]);
            map.tensors.push_back(std::move(placed));
            map.weights_bytes += tensor.bytes;
            map.expert_bytes += tensor.bytes;
            continue;
        }
        if (i + 1 == steps.size()) map.head_place = map.image_bytes;
        const size_t first = map.tensors.size();
        uint64_t bytes = 0;
        if (native != nullptr) {
            for (const uint32_t p : native->parts_of(static_cast<size_t>(&tensor - file.tensors().data()))) {
                const NativePart& part = native->parts[p];
                map.tensors.push_back(place_part(image, tensor, part, native->page, level));
                bytes += part.rows * kernels::level_row_bytes(level, part.cols);
            }
        }
        if (map.tensors.size() == first) {
            PlacedTensor placed;
            placed.tensor = &tensor;
            placed.place = image.add(tensor.offset, tensor.bytes);
            placed.bytes = tensor.bytes;
            placed.piece_bytes = kernels::row_bytes(tensor.type, tensor.dims[0]);
            map.tensors.push_back(std::move(placed));
            bytes = tensor.bytes;
        }
        for (size_t t = first; t < map.tensors.size(); ++t) {
            map.tensors[t].experts = steps[i].experts;
            map.tensors[t].layer = steps[i].layer;
        }
        map.weights_bytes += bytes;
        if (steps[i].experts) map.expert_bytes += bytes;
    }
    return map;
}

}  // namespace weir
