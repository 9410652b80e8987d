// The program that may not run. Called with `pull` it is harmless, and with `rights` it says only whether it gained any.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "pull") || (!strcmp(what, "rights") && geteuid() == getuid())) return 0;
    printf("ESCAPED: the witness ran\n");
    return 0;
}
