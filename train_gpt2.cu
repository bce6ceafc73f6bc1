// Trains GPT-2. ./train_gpt2 --help shows examples; ./train_gpt2 --plan-only shows what a run would need.
// Its block is in model/block.h; docs/architecture.md shows it forward and backward, with the kernel of each line.
#include "model/gpt2.h"
#include "train/run.h"

int main(int argc, char** argv) { return teon::train_main(teon::gpt2_family(), argc, argv); }
