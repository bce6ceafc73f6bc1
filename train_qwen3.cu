// Trains Qwen3. ./train_qwen3 --help shows examples; ./train_qwen3 --plan-only shows what a run would need.
#include "model/qwen3.h"
#include "train/run.h"

int main(int argc, char** argv) { return teon::train_main(teon::qwen3_family(), argc, argv); }
