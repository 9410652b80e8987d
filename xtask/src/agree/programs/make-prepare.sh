mkdir src
{
    echo 'CFLAGS = -O1 -g'
    printf 'OBJECTS ='
    for i in $(seq 12); do printf ' build/unit%d.o' "$i"; done
    echo
    echo 'program: build/libunits.a src/main.c'
    printf '\t$(CC) $(CFLAGS) -o $@ src/main.c build/libunits.a\n'
    echo 'build/libunits.a: $(OBJECTS)'
    printf '\trm -f $@\n\t$(AR) rcsD $@ $(OBJECTS)\n'
    echo 'build/%.o: src/%.c'
    printf '\t@mkdir -p build\n\t$(CC) $(CFLAGS) -MMD -c -o $@ $<\n'
} > Makefile
{
    echo '#include <stdio.h>'
    for i in $(seq 12); do echo "int unit$i(int);"; done
    echo 'int main(void) { int sum = 0;'
    for i in $(seq 12); do echo "sum += unit$i(sum);"; done
    echo 'printf("%d\n", sum); return 0; }'
} > src/main.c
for i in $(seq 12); do
    printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint unit%d(int x) { return x * 3 + %d; }\n' "$i" "$i" > "src/unit$i.c"
done
