// Samples text from a checkpoint of any family. ./generate --help shows examples.
#include "generation/generate.h"
#include "model/families.h"

int main(int argc, char** argv) { return teon::generate_main(teon::families(), argc, argv); }
