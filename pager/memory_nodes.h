// Where frames lie on a machine with several memory nodes. Decode threads stream every frame once, each its share, so
// frames are interleaved over the nodes whose processors this process may use: all memory channels are busy, and no node
// fills up first. A process that is confined to one node gets its frames there. On a single node nothing is asked of the
// kernel at all.
//
// Pure reading of sysfs, and one mbind. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weir::pager {

struct NumaNode {
    unsigned id = 0;
    uint64_t memory = 0;          // bytes; 0: processors only
    std::vector<unsigned> cpus;
};

// Nodes that are online, by sysfs; one node without an id of its own where the kernel knows none. root: where /sys lies.
std::vector<NumaNode> numa_nodes(const char* root = "");

// "0-2,5" as sysfs and cpusets write sets.
std::vector<unsigned> parse_list(const std::string& text);

// Nodes that frames are spread over: those with memory and with one of `cpus` among their processors; where none has both,
// those with memory. Fewer than two nodes in the machine: none, there is nothing to choose.
std::vector<unsigned> nodes_for_frames(const std::vector<NumaNode>& nodes, const std::vector<unsigned>& cpus);

// Processors that this process may use.
std::vector<unsigned> own_cpus();

// Asks for the pages of [address, address + bytes), none of which is there yet, to be spread over the nodes. Does nothing
// for an empty list. 0, or the errno: the kernel places pages as it likes then.
int interleave(void* address, size_t bytes, const std::vector<unsigned>& nodes) noexcept;

}  // namespace weir::pager
