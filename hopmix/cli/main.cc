#include <malloc.h>

#include "hopmix/cli/commands.h"

int main(int argc, char** argv) {
  // Each training step allocates what the last one freed. Keep the pages: faulting them in again
  // costs more than filling them. glibc caps the first of these settings at 32 MiB.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  return hopmix::cli::run(argc, argv);
}
