# Units of some hundred lines, which include what C programs usually include.
mkdir src
units=$1
{
    echo 'CFLAGS = -O1'
    printf 'OBJECTS ='
    for i in $(seq "$units"); do printf ' build/unit%d.o' "$i"; done
    echo
    echo 'program: $(OBJECTS)'
    printf '\t@$(CC) $(CFLAGS) -o $@ $(OBJECTS)\n'
    echo 'build/%.o: src/%.c'
    printf '\t@$(CC) $(CFLAGS) -MMD -c -o $@ $<\n'
} > Makefile
for i in $(seq "$units"); do
    {
        printf '#include <%s>\n' stdio.h stdlib.h string.h unistd.h errno.h fcntl.h math.h sys/stat.h sys/types.h
        for j in $(seq 40); do
            echo "static int f$j(int x) { char b[64]; snprintf(b, sizeof b, \"%d\", x * $j); return (int)strlen(b) + atoi(b); }"
        done
        echo "int unit$i(int x) {"
        for j in $(seq 40); do echo "x += f$j(x);"; done
        echo 'return x; }'
    } > "src/unit$i.c"
done
echo 'int main(void) { return 0; }' >> src/unit1.c
