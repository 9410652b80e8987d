// A program that may not run and needs nobody to run, so that it can stand in the place of a loader.
static long call(long number, long a, long b, long c) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result;
}
void _start(void) {
    static const char text[] = "ESCAPED: the bare program ran\n";
#if defined(__x86_64__)
    call(1, 1, (long)text, sizeof text - 1);
    call(60, 0, 0, 0);
#elif defined(__aarch64__)
    call(64, 1, (long)text, sizeof text - 1);
    call(93, 0, 0, 0);
#endif
    for (;;) {}
}
