// The first process of a machine that boots for nothing but the kernels' tests (scripts/test_avx512.sh): runs each line
// of /tests as a command, says on the console how all ended, and switches the machine off. Linked statically.
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace {

// Arguments are parted by single blanks.
int run(char* line) {
    const pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) {
        char* arguments[16] = {};
        size_t count = 0;
        for (char* word = std::strtok(line, " "); word != nullptr && count < 15; word = std::strtok(nullptr, " "))
            arguments[count++] = word;
        execv(arguments[0], arguments);
        std::perror(arguments[0]);
        _exit(127);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) return -1;
    return status;
}

}  // namespace

int main() {
    if (mkdir("/proc", 0755) != 0 || mount("proc", "/proc", "proc", 0, nullptr) != 0) std::perror("init: /proc");
    int failed = 0, ran = 0;
    if (std::FILE* const tests = std::fopen("/tests", "r")) {
        char line[1024];
        while (std::fgets(line, sizeof line, tests) != nullptr) {
            line[std::strcspn(line, "\n")] = '\0';
            std::printf("init: %s\n", line);
            std::fflush(stdout);
            ++ran;
            if (const int status = run(line); status != 0) {
                ++failed;
                std::printf("init: ended with status %#x\n", static_cast<unsigned>(status));
            }
        }
        std::fclose(tests);
    }
    std::printf("init: all: %d of %d passed\n", ran - failed, ran);
    std::fflush(stdout);
    tcdrain(STDOUT_FILENO);
    reboot(RB_POWER_OFF);
    return 1;
}
