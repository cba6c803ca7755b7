#include "runtime/model/model_map.h"

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

}  // namespace

ModelMap build_model_map(const GgufFile& file, const ModelConfig& config, uint64_t page, bool experts_apart) {
    const auto down = [page](uint64_t n) { return n / page * page; };
    const auto up = [page](uint64_t n) { return (n + page - 1) / page * page; };

    ModelMap map;
    map.embedding = &file.tensor("token_embd.weight");
    const std::vector<Step> steps = walk_order(config);
    uint64_t previous_end = 0;  // in the file, of the tensor before
    for (size_t i = 0; i < steps.size(); ++i) {
        const GgufTensor& tensor = file.tensor(steps[i].name);
        map.weights_bytes += tensor.bytes;
        if (steps[i].experts) map.expert_bytes += tensor.bytes;
        if (steps[i].experts && experts_apart) {
            map.tensors.push_back({&tensor, map.image_bytes, true, steps[i].layer});
            continue;
        }
        const uint64_t begin = down(tensor.offset);
        const uint64_t end = up(tensor.offset + tensor.bytes);
        if (i + 1 == steps.size()) map.head_place = map.image_bytes;

        PlacedRange* last = map.ranges.empty() ? nullptr : &map.ranges.back();
        const bool follows = last != nullptr && tensor.offset >= previous_end &&
                             begin <= last->file_offset + last->bytes && begin >= last->file_offset;
        if (follows) {
            // The tensor before ends in the page where this one begins: they share it.
            map.tensors.push_back({&tensor, last->place + (tensor.offset - last->file_offset), steps[i].experts,
                                   steps[i].layer});
            if (end > last->file_offset + last->bytes) last->bytes = end - last->file_offset;
        } else {
            map.ranges.push_back({map.image_bytes, begin, end - begin});
            map.tensors.push_back({&tensor, map.image_bytes + (tensor.offset - begin), steps[i].experts, steps[i].layer});
        }
        map.image_bytes = map.ranges.back().place + map.ranges.back().bytes;
        previous_end = tensor.offset + tensor.bytes;
    }
    return map;
}

}  // namespace weir
