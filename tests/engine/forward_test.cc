// The forward pass against an independent one in double precision, and against itself: the same logits to the bit
// however the tokens are batched and whoever computes them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "runtime/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/reference.h"
#include "tests/engine/tiny_model.h"

namespace weir::test {
namespace {

using kernels::Activation;
using kernels::Type;

std::vector<int32_t> random_ids(size_t n, size_t n_vocab, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % n_vocab);
    return ids;
}

struct Case {
    const char* name;
    TinyShape shape;
};

std::vector<Case> cases() {
    TinyShape plain;
    TinyShape tied = plain;
    tied.tied = true;
    tied.rope_factors = true;
    TinyShape odd;  // nothing that 32 divides
    odd.dim = 36;
    odd.n_heads = 6;
    odd.n_kv_heads = 3;
    odd.ffn_dim = 172;
    odd.n_vocab = 271;
    odd.n_layers = 3;
    TinyShape wide;  // heads wider than dim / n_heads, partly rotated, positions scaled, many heads to one key
    wide.head_dim = 24;
    wide.rope_dims = 16;
    wide.n_kv_heads = 1;
    wide.rope_linear_factor = 4;
    TinyShape mixed;  // as Q4_K_M and its kind mix types
    mixed.dim = 256;
    mixed.ffn_dim = 512;
    mixed.body = Type::kQ4_K;
    mixed.down = Type::kQ6_K;
    mixed.embedding = Type::kQ8_0;
    mixed.tied = true;
    TinyShape half;
    half.body = Type::kF16;
    half.down = Type::kBF16;
    half.embedding = half.head = Type::kF16;
    TinyShape q4;
    q4.body = q4.down = Type::kQ4_0;
    q4.embedding = Type::kQ4_1;
    q4.head = Type::kQ8_0;
    TinyShape both;  // float and quantised matrices in one layer, and a down whose rows no block divides
    both.body = Type::kQ5_1;
    both.ffn_dim = 100;
    return {{"plain", plain}, {"tied", tied},   {"odd", odd}, {"wide", wide},
            {"mixed", mixed}, {"half", half}, {"q4", q4},   {"both", both}};
}

double relative_error(const std::vector<float>& truth, const std::vector<float>& logits) {
    double squares = 0, error = 0;
    for (size_t i = 0; i < truth.size(); ++i) {
        squares += static_cast<double>(truth[i]) * static_cast<double>(truth[i]);
        error += std::pow(static_cast<double>(truth[i]) - static_cast<double>(logits[i]), 2);
    }
    return std::sqrt(error / squares);
}

TEST(Forward, AgreesWithTheReference) {
    for (const Case& c : cases()) {
        SCOPED_TRACE(c.name);
        const TinyModelFile file(c.shape);
        Engine engine(file.path(), {});
        ReferenceDecoder reference(file.path());
        const auto ids = random_ids(40, c.shape.n_vocab, 7);
        const auto logits = engine.logits(ids, 16);
        double worst = 0, range = 0;
        for (size_t t = 0; t < ids.size(); ++t) {
            const auto expected = reference.step(ids[t]);
            for (size_t i = 0; i < expected.size(); ++i) {
                worst = std::max(worst, std::abs(static_cast<double>(logits[t * expected.size() + i]) - expected[i]));
                range = std::max(range, std::abs(expected[i]));
            }
        }
        EXPECT_LT(worst, 2e-5 * range) << "of a range of " << range;
    }
}

TEST(Forward, IntegerActivationsAndHalfCacheComeClose) {
    for (const Case& c : cases()) {
        SCOPED_TRACE(c.name);
        const TinyModelFile file(c.shape);
        const auto ids = random_ids(24, c.shape.n_vocab, 8);
        EngineOptions exact;
        const auto truth = Engine(file.path(), exact).logits(ids, 8);
        EngineOptions rough;
        rough.kv_type = KvType::kF16;
        for (const auto& [form, limit] : {std::pair{Activation::kInt8, 0.03}, {Activation::kFine, 0.03}, {Activation::kWhole, 0.002}}) {
            rough.forms = ActivationForms::all(form);
            const auto logits = Engine(file.path(), rough).logits(ids, 8);
            EXPECT_LT(relative_error(truth, logits), limit);
            EXPECT_GT(relative_error(truth, logits), 0);
        }
    }
}

TEST(Forward, LogitsDoNotDependOnBatchesOrThreads) {
    for (const Case& c : cases()) {
        SCOPED_TRACE(c.name);
        const TinyModelFile file(c.shape);
        const auto ids = random_ids(37, c.shape.n_vocab, 9);
        std::vector<std::pair<KvType, Activation>> kinds = {{KvType::kF16, Activation::kF32},
                                                            {KvType::kF32, Activation::kF32},
                                                            {KvType::kF16, Activation::kInt8},
                                                            {KvType::kF16, Activation::kFine},
                                                            {KvType::kF16, Activation::kWhole}};
        if (c.shape.dim / c.shape.n_heads % 32 == 0) {
            kinds.insert(kinds.end(), {{KvType::kQ8_0, Activation::kFine},
                                       {KvType::kQ4_0, Activation::kF32},
                                       {{Type::kQ8_0, Type::kF16}, Activation::kInt8},
                                       {{Type::kF32, Type::kQ4_0}, Activation::kInt8}});
        }
        for (const auto& [kv_type, form] : kinds) {
            EngineOptions options;
            options.kv_type = kv_type;
            options.forms = ActivationForms::all(form);
            const auto expected = Engine(file.path(), options).logits(ids, 1);
            for (const size_t threads : {1, 2, 3}) {
                options.threads = threads;
                Engine engine(file.path(), options);
                for (const size_t chunk : {1, 2, 17, 37}) {
                    if (threads == 1 && chunk == 1) continue;
                    engine.cache->set_length(0);
                    const auto logits = engine.logits(ids, chunk);
                    ASSERT_EQ(0, std::memcmp(expected.data(), logits.data(), expected.size() * sizeof(float)))
                        << threads << " threads, passes of " << chunk << ", " << kv_type_name(kv_type);
                }
            }
        }
    }
}

// Rounded keys and values cost what their bits say, and no more.
TEST(Forward, QuantisedCachesComeClose) {
    TinyShape shape;
    shape.dim = 256;
    shape.ffn_dim = 512;
    shape.n_ctx = 200;
    for (const size_t n_heads : {8, 1}) {  // heads of 32, and one of 256: more than an unpacked piece of a tile
        shape.n_heads = n_heads;
        shape.n_kv_heads = n_heads == 1 ? 1 : 2;
        const TinyModelFile file(shape);
        const auto ids = random_ids(150, shape.n_vocab, 8);
        EngineOptions options;
        options.max_batch = options.logit_rows = options.n_ctx = ids.size();
        const auto truth = Engine(file.path(), options).logits(ids, ids.size());
        std::vector<double> errors;
        for (const KvType type : {KvType::kF16, KvType::kQ8_0, KvType{Type::kQ8_0, Type::kQ4_0}, KvType::kQ4_0}) {
            options.kv_type = type;
            const auto logits = Engine(file.path(), options).logits(ids, ids.size());
            errors.push_back(relative_error(truth, logits));
            std::printf("heads of %zu, cache of %s: relative error %.2e\n", shape.dim / n_heads, kv_type_name(type).c_str(),
                        errors.back());
        }
        EXPECT_LT(errors[0], 1e-3);
        EXPECT_LT(errors[1], 0.02);
        EXPECT_LT(errors[3], 0.3);
        EXPECT_TRUE(std::is_sorted(errors.begin(), errors.end()));
    }
}

TEST(Forward, QuantisedCachesWantWholeBlocks) {
    const TinyModelFile file({});  // heads of 16
    EngineOptions options;
    options.kv_type = {Type::kF16, Type::kQ8_0};
    try {
        Engine(file.path(), options);
        FAIL() << "no error";
    } catch (const UsageError& e) {
        EXPECT_NE(std::string(e.what()).find("values of q8_0"), std::string::npos) << e.what();
    }
}

// A rounded block has no way to say that one of its elements was not a number.
TEST(Forward, NotANumberInAQuantisedCacheNamesTheLayer) {
    TinyShape shape;
    shape.dim = 256;
    shape.nan_layer = 1;
    shape.nan_part = "attn_v.weight";
    const TinyModelFile file(shape);
    for (const KvType type : {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0}) {
        for (const size_t chunk : {1, 6}) {
            EngineOptions options;
            options.kv_type = type;
            Engine engine(file.path(), options);
            try {
                engine.logits(random_ids(6, shape.n_vocab, 12), chunk);
                FAIL() << "no error";
            } catch (const Error& e) {
                EXPECT_NE(std::string(e.what()).find("layer 1 (attention)"), std::string::npos) << e.what();
            }
        }
    }
}

// Layers with a window keep a ring of it, round which these go several times: the bits of a cache that keeps everything.
TEST(Forward, RingsOfWindowsGiveTheSameBits) {
    TinyShape shape;
    shape.architecture = "gemma3";
    shape.n_layers = 7;
    shape.head_dim = 32;
    shape.n_kv_heads = 1;
    shape.tied = true;
    shape.n_ctx = 400;
    for (const size_t window : {1, 9, 64, 70}) {
        shape.window = window;
        const TinyModelFile file(shape);
        const auto ids = random_ids(400, shape.n_vocab, 16);
        for (const KvType type : {KvType::kF16, KvType::kQ8_0}) {
            EngineOptions options;
            options.n_ctx = ids.size();
            options.kv_type = type;
            options.rings = false;
            Engine whole(file.path(), options);
            const auto expected = whole.logits(ids, 64);
            options.rings = true;
            options.threads = 2;
            for (const size_t batch : {1, 16, 64}) {
                options.max_batch = batch;
                options.logit_rows = batch;
                Engine engine(file.path(), options);
                EXPECT_LT(engine.cache->bytes(), whole.cache->bytes());
                ASSERT_EQ(expected, engine.logits(ids, batch)) << "window " << window << ", batch " << batch;
                engine.cache->set_length(0);
                ASSERT_EQ(expected, engine.logits(ids, batch == 1 ? 1 : batch - 3)) << "window " << window << ", batch " << batch;
            }
        }
    }
}

TEST(Forward, RingsOfWindowsCanBeSetBackByAPass) {
    TinyShape shape;
    shape.architecture = "gemma2";
    shape.n_layers = 2;
    shape.tied = true;
    shape.attention_soft_cap = 50;
    shape.logit_soft_cap = 30;
    shape.window = 40;
    shape.n_ctx = 300;
    const TinyModelFile file(shape);
    const auto ids = random_ids(300, shape.n_vocab, 17);
    EngineOptions options;
    options.n_ctx = ids.size();
    options.max_batch = options.logit_rows = 25;  // 39 + 25 are the 64 slots that a ring has
    Engine engine(file.path(), options);
    const size_t n_vocab = shape.n_vocab;
    const auto expected = engine.logits(ids, 25);
    EXPECT_FALSE(engine.cache->holds(274));
    EXPECT_THROW(engine.cache->set_length(274), Error);
    EXPECT_EQ(engine.cache->length(), 300u);
    for (const size_t back : {1, 25}) {
        engine.cache->set_length(300 - back);
        const auto again = engine.logits(std::span(ids).last(back), 25);
        EXPECT_TRUE(std::equal(again.begin(), again.end(), expected.end() - static_cast<std::ptrdiff_t>(back * n_vocab)));
    }
    // From the start again, and no further than the first window: everything is kept so far.
    engine.cache->set_length(0);
    engine.logits(std::span(ids).first(64), 25);
    EXPECT_TRUE(engine.cache->holds(3));
    engine.cache->set_length(3);
    const auto again = engine.logits(std::span(ids).subspan(3, 50), 25);
    EXPECT_TRUE(std::equal(again.begin(), again.end(), expected.begin() + static_cast<std::ptrdiff_t>(3 * n_vocab)));
    EXPECT_THROW(engine.cache->begin_pass(26), Error);
}

// Batches of every small size and of the largest, over several tiles of attention, in the product's forms.
TEST(Forward, LogitsAreTheSameForBatchesOf1To17And512) {
    TinyShape shape;
    shape.dim = 256;
    shape.ffn_dim = 512;
    shape.n_layers = 1;
    shape.down = Type::kQ6_K;
    shape.embedding = shape.head = Type::kQ8_0;
    for (const Type body : {Type::kQ4_K, Type::kQ4_0, Type::kQ8_0}) {
        shape.body = body;
        const TinyModelFile file(shape);
        const auto ids = random_ids(530, shape.n_vocab, 15);
        EngineOptions options;
        options.max_batch = options.logit_rows = 512;
        options.n_ctx = ids.size();
        options.kv_type = body == Type::kQ8_0 ? KvType::kQ8_0 : KvType::kF16;
        options.forms = ActivationForms::product();
        const auto expected = Engine(file.path(), options).logits(ids, 512);
        for (const size_t threads : {1, 2}) {
            options.threads = threads;
            Engine engine(file.path(), options);
            ASSERT_EQ(expected, engine.logits(ids, 512)) << threads << " threads";
            for (size_t chunk = 1; chunk <= 17; ++chunk) {
                // Two passes each at the start, across a border of tiles and at the end, over what the long pass left.
                for (const size_t first : {size_t{0}, 128 - chunk, ids.size() - 2 * chunk}) {
                    engine.cache->set_length(first);
                    const auto logits = engine.logits(std::span(ids).subspan(first, 2 * chunk), chunk);
                    ASSERT_EQ(0, std::memcmp(&expected[first * shape.n_vocab], logits.data(), logits.size() * sizeof(float)))
                        << threads << " threads, passes of " << chunk << " from " << first;
                }
            }
        }
    }
}

TEST(Forward, ResidentWeightsGiveTheSameBits) {
    const TinyModelFile file(cases()[4].shape);
    const auto ids = random_ids(20, 300, 10);
    EngineOptions options;
    const auto expected = Engine(file.path(), options).logits(ids, 7);
    options.paging = PagingMode::kResident;
    EXPECT_EQ(expected, Engine(file.path(), options).logits(ids, 7));
}

TEST(Forward, OnlyTheWantedRowsAreComputed) {
    const TinyModelFile file({});
    const auto ids = random_ids(12, 300, 11);
    const auto all = Engine(file.path(), {}).logits(ids, 12);
    Engine engine(file.path(), {});
    EXPECT_TRUE(engine.forward->pass(std::span(ids).first(5), 0, true).empty());
    const auto last = engine.forward->pass(std::span(ids).subspan(5), 2, false);
    ASSERT_EQ(last.size(), 2 * engine.config.n_vocab);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), all.end() - static_cast<std::ptrdiff_t>(last.size())));
}

TEST(Forward, NotANumberNamesTheLayer) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.nan_layer = 2;
    const TinyModelFile file(shape);
    for (const size_t threads : {1, 2}) {
        for (const size_t chunk : {1, 6}) {
            EngineOptions options;
            options.threads = threads;
            Engine engine(file.path(), options);
            const auto ids = random_ids(6, shape.n_vocab, 12);
            try {
                engine.logits(ids, chunk);
                FAIL() << "no error";
            } catch (const Error& e) {
                EXPECT_NE(std::string(e.what()).find("layer 2 (feed-forward)"), std::string::npos) << e.what();
            }
            EXPECT_EQ(engine.cache->length(), 0u);
        }
    }
}

TEST(Forward, NotANumberInTheLastLayerAndInTheHead) {
    TinyShape shape;
    shape.nan_layer = 1;
    const TinyModelFile last(shape);
    EXPECT_THROW(Engine(last.path(), {}).logits(std::vector<int32_t>{3}, 1), Error);
}

TEST(Forward, FullContextSaysSo) {
    const TinyModelFile file({});
    EngineOptions options;
    options.n_ctx = 10;
    Engine engine(file.path(), options);
    const auto ids = random_ids(11, 300, 13);
    engine.logits(std::span(ids).first(8), 8);
    try {
        engine.logits(std::span(ids).subspan(8), 3);
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("context is full"), std::string::npos) << e.what();
    }
    EXPECT_EQ(engine.cache->length(), 8u);
    engine.logits(std::span(ids).subspan(8, 2), 2);
}

TEST(Forward, IdsOutsideTheVocabularyAreRefused) {
    const TinyModelFile file({});
    Engine engine(file.path(), {});
    EXPECT_THROW(engine.logits(std::vector<int32_t>{-1}, 1), Error);
    EXPECT_THROW(engine.logits(std::vector<int32_t>{300}, 1), Error);
}

TEST(Forward, CacheCanBeTakenBack) {
    const TinyModelFile file({});
    const auto ids = random_ids(20, 300, 14);
    Engine engine(file.path(), {});
    const auto first = engine.logits(ids, 20);
    engine.cache->set_length(7);
    const auto again = engine.logits(std::span(ids).subspan(7), 5);
    EXPECT_TRUE(std::equal(again.begin(), again.end(), first.end() - static_cast<std::ptrdiff_t>(again.size())));
}

TEST(Forward, CountsItsBuffers) {
    const TinyModelFile file({});
    EngineOptions options;
    Engine engine(file.path(), options);
    EXPECT_EQ(engine.forward->activation_bytes(), ActivationBuffers::bytes(engine.config, {64, 64, 64, 1}));
    EXPECT_EQ(engine.cache->bytes(), 2 * 2 * 2 * 16 * 64 * sizeof(float));
}

TEST(Forward, CountsItsCache) {
    ModelConfig config;
    config.n_layers = 6;
    config.n_kv_heads = 2;
    config.head_dim = 64;
    const size_t per_position = 2 * 2 * 34 * 2;  // K and V, heads, blocks of two
    EXPECT_EQ(KvCache::bytes(config, KvType::kQ8_0, 1000, 512), 6 * 1000 * per_position);
    EXPECT_EQ(KvCache::bytes(config, KvType::kQ4_0, 1001, 512), 6 * 1008 * per_position / 34 * 18);
    EXPECT_EQ(KvCache::bytes(config, {Type::kQ8_0, Type::kF16}, 8, 512), 6 * 8 * 2 * (68 + 128));
    config.window = 100;
    config.window_period = 3;  // four with a window, two without
    EXPECT_EQ(KvCache::bytes(config, KvType::kQ8_0, 1000, 93), (2 * 1000 + 4 * 192) * per_position);
    EXPECT_EQ(KvCache::bytes(config, KvType::kQ8_0, 1000, 94), (2 * 1000 + 4 * 256) * per_position);
    EXPECT_EQ(KvCache::bytes(config, KvType::kQ8_0, 150, 512), 6 * 152 * per_position);
    EXPECT_THROW(KvCache::bytes(config, KvType::kF16, SIZE_MAX / 1000, 512), Error);
    EXPECT_EQ(KvCache::context_within((2 * 1000 + 4 * 192) * per_position, config, KvType::kQ8_0, 1 << 20, 93), 1000u);
    EXPECT_EQ(KvCache::context_within(8, config, KvType::kQ8_0, 1 << 20, 93), 0u);
}

}  // namespace
}  // namespace weir::test
