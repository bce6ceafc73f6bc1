// By cp.async.
#define main main_of_tutorial
#include "cute/tutorial/hopper/wgmma_sm90.cu"
#undef main

constexpr const char* kKind = "cp.async";
#include "cute.h"
