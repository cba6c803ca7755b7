#include "runtime/engine/expert_groups.h"

#include <algorithm>

#include "pager/check.h"
#include "pager/system.h"

namespace weir {
namespace {

// A slice is read in pieces of at most this, so that large ones, too, keep the device's queue filled.
constexpr uint64_t kMostRead = 2u << 20;

}  // namespace

ExpertGroups gather_experts(const ModelMap& map, size_t n_experts, size_t granule) {
    ExpertGroups g;
    g.n_experts = n_experts;
    g.parts.resize(map.tensors.size());
    std::vector<std::vector<const GgufTensor*>> layers;  // expert tensors of each layer that has some, in execution order
    size_t layer = SIZE_MAX;
    for (size_t i = 0; i < map.tensors.size(); ++i) {
        if (!map.tensors[i].experts) continue;
        if (map.tensors[i].layer != layer) layers.emplace_back();
        layer = map.tensors[i].layer;
        g.parts[i] = {static_cast<uint32_t>(layers.size() - 1), static_cast<uint32_t>(layers.back().size())};
        layers.back().push_back(map.tensors[i].tensor);
        CHECK(layers.back().size() <= ExpertGroups::kMostParts);
        g.slice_bytes += map.tensors[i].tensor->bytes;
    }
    pager::Layout& slots = g.layout.slots;
    slots.first_segment.push_back(0);
    for (size_t l = 0; l < layers.size(); ++l) {
        for (size_t e = 0; e < n_experts; ++e) {
            uint64_t at = 0;
            for (size_t part = 0; part < ExpertGroups::kMostParts; ++part) {
                if (part >= layers[l].size()) {
                    g.part_offset.push_back(0);
                    continue;
                }
                const uint64_t bytes = layers[l][part]->bytes / n_experts;
                const uint64_t begin = layers[l][part]->offset + e * bytes;
                const uint64_t from = pager::align_down(begin, granule), to = pager::align_up(begin + bytes, granule);
                CHECK(at + (to - from) <= UINT32_MAX);
                g.part_offset.push_back(static_cast<uint32_t>(at + (begin - from)));
                for (uint64_t piece = from; piece < to; piece += kMostRead) {
                    const uint64_t piece_bytes = std::min(kMostRead, to - piece);
                    slots.segments.push_back({piece, static_cast<uint32_t>(at), static_cast<uint32_t>(piece_bytes)});
                    at += piece_bytes;
                }
            }
            slots.extent_bytes = std::max<size_t>(slots.extent_bytes, at);
            slots.first_segment.push_back(static_cast<uint32_t>(slots.segments.size()));
            g.layout.places.push_back(static_cast<uint32_t>(l));
        }
    }
    return g;
}

}  // namespace weir
