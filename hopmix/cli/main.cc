#include "hopmix/cli/commands.h"

int main(int argc, char** argv) { return hopmix::cli::run(argc, argv); }
