#include "runtime/model/model_map.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

struct Step {
    std::string name;
    bool experts;
    size_t layer;
    size_t shard;
};

std::vector<Step> walk_order(const ModelConfig& config) {
    const std::vector<LayerTensor> parts = layer_tensors(config);
    std::vector<Step> steps;
    for (size_t layer = 0; layer < config.n_layers; ++layer) {
        for (const LayerTensor& part : parts) {
            if (part.is_matrix())
                steps.push_back({layer_tensor_name(layer, part.name), part.experts != 0, layer, sched::shard_of(layer, module_of(part.name))});
        }
    }
    steps.push_back({config.tied_head ? "token_embd.weight" : "output.weight", false, config.n_layers, sched::head_of(config.n_layers)});
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

// Runs that any plan reads of the shard, as bits.
uint8_t runs_of(const std::vector<sched::Plan>& plans, size_t shard) {
    uint8_t runs = 0;
    for (size_t r = 0; r < kRuns; ++r) {
        bool read = plans.empty() && reads_run(kernels::Level::k8, r);
        for (const sched::Plan& plan : plans) read = read || reads_run(plan, shard, r);
        if (read) runs = static_cast<uint8_t>(runs | 1u << r);
    }
    return runs;
}

// One part of a native file.
PlacedTensor place_part(Image& image, const GgufTensor& tensor, const NativePart& part, uint64_t page, uint8_t in_image) {
    PlacedTensor placed;
    placed.tensor = &tensor;
    placed.part = &part;
    placed.runs = in_image;
    for (uint64_t b = 0; b < part.bands(); ++b) {
        const std::array<NativeRun, kRuns> runs = band_runs(part, b, page);
        PlacedBand band;
        uint64_t end = 0;
        for (size_t r = 0; r < kRuns; ++r) {
            if (!placed.has_run(r)) continue;
            band.run_place[r] = band.run_at[r] = image.add(runs[r].offset, runs[r].bytes);
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

PlacedTensor::Stretch PlacedTensor::stretch(size_t band, kernels::Level level) const {
    size_t first = kRuns, last = 0;
    for (size_t r = 0; r < kRuns; ++r) {
        if (!reads_run(level, r)) continue;
        first = std::min(first, r);
        last = r;
    }
    const std::array<uint64_t, kRuns>& at = bands[band].run_place;
    return {first, at[first], at[last] + run_bytes(last, part->rows_of(band), part->cols) - at[first]};
}

sched::Module module_of(std::string_view name) {
    const auto has = [&](const char* part) { return name.find(part) != std::string_view::npos; };
    if (has("attn_q") || has("attn_k")) return sched::Module::kQk;
    if (has("attn_v") || has("attn_output")) return sched::Module::kVo;
    return has("ffn_down") ? sched::Module::kDown : sched::Module::kGateUp;
}

ModelMap build_model_map(const GgufFile& file, const ModelConfig& config, uint64_t page, bool experts_apart,
                         const std::vector<sched::Plan>& plans) {
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
                map.tensors.push_back(place_part(image, tensor, part, native->page, runs_of(plans, steps[i].shard)));
                for (size_t r = 0; r < kRuns; ++r)
                    if (map.tensors.back().has_run(r)) bytes += run_bytes(r, part.rows, part.cols);
            }
        }
        if (map.tensors.size() == first) {
            PlacedTensor placed;
            placed.tensor = &tensor;
            placed.place = placed.at = image.add(tensor.offset, tensor.bytes);
            placed.bytes = tensor.bytes;
            placed.piece_bytes = kernels::row_bytes(tensor.type, tensor.dims[0]);
            map.tensors.push_back(std::move(placed));
            bytes = tensor.bytes;
        }
        for (size_t t = first; t < map.tensors.size(); ++t) {
            map.tensors[t].experts = steps[i].experts;
            map.tensors[t].layer = steps[i].layer;
            map.tensors[t].shard = steps[i].shard;
        }
        map.weights_bytes += bytes;
        if (steps[i].experts) map.expert_bytes += bytes;
    }
    return map;
}

bool reads_run(const sched::Plan& plan, size_t shard, size_t run) {
    return plan.levels[shard] != sched::kNotRead && reads_run(static_cast<kernels::Level>(plan.levels[shard]), run);
}

PlanBytes plan_bytes(const ModelMap& map, const sched::Plan& plan) {
    PlanBytes sum;
    for (const PlacedTensor& t : map.tensors) {
        uint64_t bytes = t.bytes;
        if (t.part != nullptr)
            bytes = plan.levels[t.shard] == sched::kNotRead
                        ? 0
                        : t.part->rows * kernels::level_row_bytes(static_cast<kernels::Level>(plan.levels[t.shard]), t.part->cols);
        sum.weights += bytes;
        if (t.experts) sum.experts += bytes;
    }
    return sum;
}

}  // namespace weir
