/* Computes, and asks the kernel for nothing. */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    unsigned long x = 1, count = strtoul(argv[1], NULL, 10);
    for (unsigned long i = 0; i < count; i++)
        x = x * 6364136223846793005UL + 1442695040888963407UL;
    printf("%lu\n", x);
    return 0;
}
