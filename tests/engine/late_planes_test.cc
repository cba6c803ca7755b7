// A store whose refinement never comes: all matrices are computed at the base level, to the bit.
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"

namespace weir::test {
namespace {

class LateStore : public WeightStore {
  public:
    explicit LateStore(std::unique_ptr<WeightStore> inner) : inner_(std::move(inner)) {}
    const Matrix& matrix(const std::string& name) const override { return inner_->matrix(name); }
    std::vector<float> vector(const std::string& name) const override { return inner_->vector(name); }
    void use_plan(const sched::Plan& plan) override { inner_->use_plan(plan); }
    void begin_pass(bool with_head, bool next_follows) override { inner_->begin_pass(with_head, next_follows); }
    void end_pass() override { inner_->end_pass(); }
    void embedding_rows(std::span<const int32_t> ids, float* out) override { inner_->embedding_rows(ids, out); }
    uint64_t copy_rows(const std::string& name, std::span<const int32_t> rows, kernels::Level level,
                       const std::array<std::byte*, kernels::kPlanes>& to) override {
        return inner_->copy_rows(name, rows, level, to);
    }
    size_t extent_bytes() const override { return inner_->extent_bytes(); }
    bool acquire(size_t worker, uint64_t place, size_t bytes) noexcept override { return inner_->acquire(worker, place, bytes); }
    bool refined(size_t, uint64_t, size_t) noexcept override { return false; }
    void release(size_t worker, uint64_t place) noexcept override { inner_->release(worker, place); }
    std::vector<MapCell> map_cells() const override { return inner_->map_cells(); }
    StoreView look() const override { return inner_->look(); }
    StoreStats stats() const override { return inner_->stats(); }

  private:
    std::unique_ptr<WeightStore> inner_;
};

TEST(LatePlanes, AreComputedAtTheBaseLevel) {
    TinyShape shape;
    shape.n_layers = 3;
    const TinyNativeFile file(shape);
    const std::vector<int32_t> ids = {5, 77, 140, 3, 9, 250};
    for (const uint32_t seed : {0u, 1u, 2u}) {
        const sched::Plan plan = mixed_plan(shape.n_layers, seed), base = sched::capped_plan(plan, 4);
        ASSERT_NE(plan, base);
        for (const size_t threads : {1, 2}) {
            EngineOptions options{.paging = PagingMode::kResident, .plans = {plan, base}};
            options.threads = threads;
            Engine late(file.path(), options), coarse(file.path(), {.paging = PagingMode::kResident, .plans = {base}});
            LateStore store(std::move(late.store));
            Forward forward(late.model, store, *late.cache, *late.team, *kernels::select_kernels(""), options.forms, 64, 64);
            for (const size_t rows : {size_t{1}, ids.size()}) {
                late.cache->set_length(0);
                coarse.cache->set_length(0);
                for (size_t at = 0; at < ids.size(); at += rows) {
                    const auto part = std::span(ids).subspan(at, rows);
                    const auto got = forward.pass(part, rows, true), wanted = coarse.forward->pass(part, rows, true);
                    ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), got.begin(), got.end()));
                }
            }
        }
    }
}

}  // namespace
}  // namespace weir::test
