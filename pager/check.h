// CHECK: an invariant of our own that does not hold ends the process with a line that names it. On in every build:
// a pager that goes on with a broken table would hand out wrong bytes. Bad input is never CHECKed.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) [[unlikely]] {                                                               \
            std::fprintf(stderr, "weir: broken invariant: %s at %s:%d\n", #condition, __FILE__, __LINE__); \
            std::abort();                                                                              \
        }                                                                                              \
    } while (false)

#ifdef NDEBUG
#define DCHECK(condition) ((void)0)
#else
#define DCHECK(condition) CHECK(condition)
#endif
