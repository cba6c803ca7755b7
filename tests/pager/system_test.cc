// Page sizes and memory nodes: this machine's, and those of machines that are made up in a folder.
#include <gtest/gtest.h>
#include <numaif.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "pager/mapping.h"
#include "pager/memory_nodes.h"
#include "pager/system.h"
#include "tests/fake_root.h"

namespace weir::pager {
namespace {

using test::FakeRoot;
constexpr const char* kThp = "sys/kernel/mm/transparent_hugepage/";

TEST(PageSize, AWishIsAPowerOfTwoFromTheKernelsPageOn) {
    EXPECT_EQ(page_size_wanted(nullptr, 4096), 4096u);
    EXPECT_EQ(page_size_wanted("", 16384), 16384u);
    EXPECT_EQ(page_size_wanted("16384", 4096), 16384u);
    EXPECT_EQ(page_size_wanted("64K", 4096), 65536u);
    EXPECT_EQ(page_size_wanted("4k", 4096), 4096u);
    for (const char* bad : {"2048", "12288", "128K", "-4096", "x", "16384x", "16 K", "K", "99999999999999999999", "0"})
        EXPECT_EQ(page_size_wanted(bad, 4096), 0u) << bad;
    EXPECT_EQ(page_size_wanted("4096", 16384), 0u);
}

TEST(PageSize, IsTheKernelsUnlessAsked) {
    EXPECT_EQ(kernel_page_size(), static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
    EXPECT_EQ(page_size(), page_size_wanted(std::getenv("WEIR_PAGE_SIZE"), kernel_page_size()));
}

TEST(PmdSize, IsReadAndNeverAssumed) {
    const FakeRoot root;
    EXPECT_EQ(pmd_page_size(root.path().c_str()), page_size());  // no THP at all
    EXPECT_FALSE(huge_pages_allowed(root.path().c_str()));
    for (const size_t size : {size_t{2} << 20, size_t{32} << 20, size_t{512} << 20}) {  // 4, 16 and 64 KiB pages
        root.put(std::string(kThp) + "hpage_pmd_size", std::to_string(size) + "\n");
        EXPECT_EQ(pmd_page_size(root.path().c_str()), size);
    }
    root.put(std::string(kThp) + "hpage_pmd_size", "nonsense\n");
    EXPECT_EQ(pmd_page_size(root.path().c_str()), page_size());
}

TEST(HugePages, TheSwitchOfTheSizeCountsBeforeTheOneForAll) {
    const FakeRoot root;
    const char* const path = root.path().c_str();
    root.put(std::string(kThp) + "hpage_pmd_size", "2097152\n");
    root.put(std::string(kThp) + "enabled", "always [madvise] never\n");
    EXPECT_TRUE(huge_pages_allowed(path));
    root.put(std::string(kThp) + "enabled", "always madvise [never]\n");
    EXPECT_FALSE(huge_pages_allowed(path));
    const std::string size = std::string(kThp) + "hugepages-2048kB/enabled";
    root.put(size, "always [inherit] madvise never\n");
    EXPECT_FALSE(huge_pages_allowed(path));
    root.put(size, "always inherit [madvise] never\n");
    EXPECT_TRUE(huge_pages_allowed(path));
    root.put(std::string(kThp) + "enabled", "[always] madvise never\n");
    root.put(size, "always inherit madvise [never]\n");
    EXPECT_FALSE(huge_pages_allowed(path));
}

TEST(Numa, Lists) {
    using List = std::vector<unsigned>;
    EXPECT_EQ(parse_list(""), List());
    EXPECT_EQ(parse_list("0"), List({0}));
    EXPECT_EQ(parse_list("0-3,7,9-10\n"), List({0, 1, 2, 3, 7, 9, 10}));
    EXPECT_EQ(parse_list("3-1"), List());
    EXPECT_EQ(parse_list("1,x"), List({1}));
    EXPECT_LE(parse_list("0-4294967295").size(), size_t{1} << 16);
}

class FakeNodes : public ::testing::Test {
  protected:
    void node(unsigned id, const char* cpus, uint64_t kib) {
        const std::string folder = "sys/devices/system/node/node" + std::to_string(id) + "/";
        root_.put(folder + "cpulist", std::string(cpus) + "\n");
        root_.put(folder + "meminfo", "Node " + std::to_string(id) + " MemTotal:       " + std::to_string(kib) + " kB\n");
    }
    FakeRoot root_;
};

TEST_F(FakeNodes, OneNodeHasNothingToChoose) {
    EXPECT_EQ(numa_nodes(root_.path().c_str()).size(), 1u);  // a kernel without NUMA
    root_.put("sys/devices/system/node/online", "0\n");
    node(0, "0-3", 1000);
    const auto nodes = numa_nodes(root_.path().c_str());
    ASSERT_EQ(nodes.size(), 1u);
    EXPECT_EQ(nodes[0].memory, 1000u << 10);
    EXPECT_EQ(nodes[0].cpus.size(), 4u);
    EXPECT_TRUE(nodes_for_frames(nodes, {0, 1, 2, 3}).empty());
}

TEST_F(FakeNodes, FramesLieWhereTheProcessorsAre) {
    root_.put("sys/devices/system/node/online", "0-3\n");
    node(0, "0-3", 1000);
    node(1, "4-7", 1000);
    node(2, "8-11", 0);  // no memory of its own
    node(3, "", 1000);   // memory without processors
    const auto nodes = numa_nodes(root_.path().c_str());
    ASSERT_EQ(nodes.size(), 4u);
    using List = std::vector<unsigned>;
    EXPECT_EQ(nodes_for_frames(nodes, {0, 5}), List({0, 1}));
    EXPECT_EQ(nodes_for_frames(nodes, {4, 6}), List({1}));
    EXPECT_EQ(nodes_for_frames(nodes, {8}), List({0, 1, 3}));
    EXPECT_EQ(nodes_for_frames(nodes, {}), List({0, 1, 3}));
}

TEST(Numa, InterleavingIsWhatTheKernelThenSays) {
    Mapping memory(size_t{4} << 20, page_size(), false, "test");
    EXPECT_EQ(interleave(memory.base(), memory.bytes(), {}), 0);
    const int error = interleave(memory.base(), memory.bytes(), {0});
    if (error == ENOSYS || error == EPERM) GTEST_SKIP() << "no memory policies here";
    ASSERT_EQ(error, 0);
    int mode = -1;
    ASSERT_EQ(::get_mempolicy(&mode, nullptr, 0, memory.base(), MPOL_F_ADDR), 0);
    EXPECT_EQ(mode, MPOL_INTERLEAVE);
    memory.base()[0] = std::byte{1};
}

}  // namespace
}  // namespace weir::pager
