// The instruction set that the kernels were compiled for. The Python side is build.py.

#include "lanes.h"

extern "C" const char* posenc_instructions() { return posenc::kInstructions; }
