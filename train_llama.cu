// Trains LLaMA. ./train_llama --help shows examples; ./train_llama --plan-only shows what a run would need.
#include "model/llama.h"
#include "train/run.h"

int main(int argc, char** argv) { return teon::train_main(teon::llama_family(), argc, argv); }
