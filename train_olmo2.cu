// Trains OLMo 2. ./train_olmo2 --help shows examples; ./train_olmo2 --plan-only shows what a run would need.
// Its block is in model/block.h; docs/architecture.md shows it forward and backward, with the kernel of each line.
#include "model/olmo2.h"
#include "train/run.h"

int main(int argc, char** argv) { return teon::train_main(teon::olmo2_family(), argc, argv); }
