#include "runtime/engine/plan.h"

#include <algorithm>

#include "pager/residency_policy.h"
#include "runtime/engine/paging_shape.h"
#include "runtime/error.h"

namespace weir {

const char* bound_name(Bound bound) { return bound == Bound::kCompute ? "compute" : "disk"; }

double together_s(double compute_s, double read_s, const Together& together) {
    const double compute = compute_s / together.compute, read = read_s / together.read;
    const double rest = compute < read ? read_s - compute * together.read : compute_s - read * together.compute;
    return std::min(std::min(compute, read) + rest, compute_s + read_s);
}

Plan make_plan(const PlanInput& in) {
    Plan plan;
    plan.budget = divide_memory(in.budget);
    const PagingShape shape = shape_paging(in.image_bytes, in.longest_row_bytes, plan.budget.frames, in.budget.threads, in.granule,
                                           in.experts.groups);
    uint64_t experts_read = 0;
    if (const size_t groups = in.experts.n_groups(); groups > 0) {
        const uint64_t slot_bytes = in.experts.groups.slots.extent_bytes;
        const size_t slots = std::min<size_t>(groups, shape.slot_frames * shape.extent_bytes / slot_bytes);
        plan.expert_bytes = slots * slot_bytes;
        plan.hit_rate = expected_hit_rate(in.experts, slots);
        const auto used = static_cast<double>(in.experts.layers() * in.experts.used);
        experts_read = static_cast<uint64_t>(used * (1 - plan.hit_rate) * static_cast<double>(in.experts.group_bytes()));
    }
    plan.extent_bytes = shape.extent_bytes;
    plan.compute_s = in.compute_s;
    const auto divide = [&](size_t ring) {
        const pager::Residency residency =
            pager::choose_residency(shape.n_extents, shape.frames, {in.budget.threads, in.copies, shape.holding, ring});
        // The last Extent of the image is as a rule not full: what is pinned is never more than there is.
        const uint64_t pinned = std::min<uint64_t>(in.image_bytes, residency.n_pinned * shape.extent_bytes);
        plan.resident_bytes = pinned + plan.expert_bytes;
        plan.ring_bytes = residency.ring * shape.extent_bytes;
        plan.streamed_bytes = in.image_bytes - pinned + in.row_bytes + experts_read;
        plan.read_s = in.device_bytes_per_s > 0 ? static_cast<double>(plan.streamed_bytes) / in.device_bytes_per_s : 0;
    };
    // As RingLength settles: long where reads bound, short where they do not.
    divide(pager::longest_ring(shape.n_extents));
    if (plan.read_s < plan.compute_s) divide(pager::shortest_ring());
    plan.bound = plan.read_s > plan.compute_s ? Bound::kDevice : Bound::kCompute;
    const double token_s = together_s(plan.compute_s, plan.read_s, in.together);
    plan.tokens_per_s = token_s > 0 ? 1 / token_s : 0;
    const uint64_t first_pass = in.image_bytes + in.experts.layers() * in.experts.used * in.experts.group_bytes();
    const double pass_s = in.device_bytes_per_s > 0 ? static_cast<double>(first_pass) / in.device_bytes_per_s : 0;
    plan.first_token_s = together_s(plan.compute_s, pass_s, in.together);
    return plan;
}

std::optional<Plan> plan_at(PlanInput input, uint64_t ram) {
    input.budget.ram = ram;
    try {
        return make_plan(input);
    } catch (const UsageError&) {
        return std::nullopt;
    }
}

uint64_t ram_for_all(const PlanInput& input) {
    PlanInput in = input;
    in.budget.weights_ram.reset();
    const auto everything_stays = [&](uint64_t ram) {
        const std::optional<Plan> plan = plan_at(in, ram);
        return plan && plan->streamed_bytes == in.row_bytes;
    };
    uint64_t enough = in.image_bytes + in.experts.n_groups() * in.experts.groups.slots.extent_bytes + in.budget.base + in.budget.kv_cache + in.budget.activations;
    while (!everything_stays(enough)) enough += enough / 8 + 1;
    uint64_t least = 0;
    while (enough - least > (uint64_t{1} << 20)) {  // to a MiB
        const uint64_t middle = least + (enough - least) / 2;
        (everything_stays(middle) ? enough : least) = middle;
    }
    return enough;
}

PlanInput with_weights(PlanInput input, double share, double compute_s) {
    input.image_bytes = static_cast<uint64_t>(static_cast<double>(input.image_bytes) * share);
    input.longest_row_bytes = static_cast<uint64_t>(static_cast<double>(input.longest_row_bytes) * share);
    pager::Layout& slots = input.experts.groups.slots;
    slots.extent_bytes = static_cast<size_t>(static_cast<double>(slots.extent_bytes) * share);
    for (pager::Segment& s : slots.segments) s.bytes = static_cast<uint32_t>(s.bytes * share);
    input.row_bytes = static_cast<uint64_t>(static_cast<double>(input.row_bytes) * share);
    input.compute_s = compute_s;
    return input;
}

}  // namespace weir
