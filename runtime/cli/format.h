// Figures as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weir {

// "512 B", "1.5 KiB", "323.0 MiB", "1.89 GiB": powers of 1024, three or four figures.
std::string format_bytes(uint64_t bytes);

// printf's "%.*f".
std::string format_fixed(double value, int decimals);

// Lines of cells in columns that are as wide as their widest cell, two blanks apart and before the first.
// align: one letter per column, 'l' or 'r'. Nothing is padded behind the last column.
std::string format_table(const std::vector<std::vector<std::string>>& lines, const std::string& align);

}  // namespace weir
