// By TMA, in clusters of two blocks.
#define main main_of_tutorial
#include "cute/tutorial/hopper/wgmma_tma_sm90.cu"
#undef main

constexpr const char* kKind = "TMA";
#include "cute.h"
