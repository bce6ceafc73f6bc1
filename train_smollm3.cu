// Trains SmolLM3. ./train_smollm3 --help shows examples; ./train_smollm3 --plan-only shows what a run would need.
// Its block is in model/block.h; docs/architecture.md shows it forward and backward, with the kernel of each line.
#include "model/smollm3.h"
#include "train/run.h"

int main(int argc, char** argv) { return teon::train_main(teon::smollm3_family(), argc, argv); }
