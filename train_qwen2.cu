// Trains Qwen2. ./train_qwen2 --help shows examples; ./train_qwen2 --plan-only shows what a run would need.
// Its block is in model/block.h; docs/architecture.md shows it forward and backward, with the kernel of each line.
#include "model/qwen2.h"
#include "train/run.h"

int main(int argc, char** argv) { return teon::train_main(teon::qwen2_family(), argc, argv); }
