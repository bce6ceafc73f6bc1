// Samples text from a checkpoint of GPT-2 or LLaMA. ./generate --help lists the flags.
#include "generation/generate.h"
#include "model/gpt2.h"
#include "model/llama.h"

int main(int argc, char** argv) {
    return teon::generate_main({{"train_gpt2", "small", teon::gpt2_presets(), teon::gpt2_config},
                                {"train_llama", "60m", teon::llama_presets(), teon::llama_config}},
                               argc, argv);
}
