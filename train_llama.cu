// Trains LLaMA. ./train_llama --help shows examples; ./train_llama --plan-only shows what a run would need.
// Its block is in model/block.h; docs/architecture.md shows it forward and backward, with the kernel of each line.
#include "model/llama.h"
#include "train/run.h"

int main(int argc, char** argv) { return teon::train_main(teon::llama_family(), argc, argv); }
