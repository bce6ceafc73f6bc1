// Prints the losses of llm.c's trainer for CPUs.
#define TESTING
#include "train_gpt2.c"

#include "llm_train.h"

int main(int count, char** arguments) {
    float losses[kSteps];
    train(count > 1 ? arguments[1] : "model.bin", losses);
    for (int step = 0; step < kSteps; ++step) printf("loss %.7g\n", (double)losses[step]);
    return 0;
}
