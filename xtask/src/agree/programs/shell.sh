# Pipes, subshells, background jobs, redirections, traps, and a process that outlives its parent.
set -u
umask 027
mkdir -p out/deep/er
for i in 1 2 3 4 5; do
    echo "line $i" >> out/lines
done
cat out/lines | tr a-z A-Z | sort -r | tee out/sorted | wc -l > out/count
(cd out/deep && echo inner > er/file && mv er/file ../moved && ln -s ../moved er/link && cat er/link)
{ echo a; echo b >&2; } > out/both 2>&1
echo more > out/deep/er/../../both2
chmod 640 out/moved out/deep/er/link
touch -d '2020-01-02 03:04:05' out/both
cp -p out/both out/copy
ln out/copy out/hard
truncate -s 100 out/copy
for i in 1 2 3; do
    (sleep 0.0$i; echo "job $i" > "out/job.$i") &
done
wait
cat out/job.*
echo gone > out/temporary && rm out/temporary
rm out/never 2> out/error || echo "rm says no"
/no/such/program 2> /dev/null || echo "exec says $?"
(setsid sh -c 'sleep 0.1; echo late > out/late' &)
sh -c 'kill -TERM $$'
echo "after the signal: $?"
sh -c 'exit 3'
echo "after the exit: $?"
exec 3> out/open
echo three >&3
exec 3>&-
find out -name 'job.*' -exec rm {} +
rmdir out/deep 2> /dev/null || echo "not empty"
rm -r out/deep
sleep 1
cat out/late
exit 7
