git clone --quiet --no-local origin clone
git clone --quiet --local origin near
cd clone
# Files as young as the index are hashed again, and whether they are is a matter of milliseconds.
find src docs ! -type d -exec touch -h -d '2020-01-01' {} +
git update-index -q --refresh
for i in 1 2 3 4 5; do
    echo "change $i" >> "src/file.$i"
done
rm src/file.6
git mv src/file.7 src/moved
git add -A
git commit --quiet -m 'third'
git checkout --quiet -b branch HEAD~1
echo other > other
git add other
git commit --quiet -m fourth
git merge --quiet -m merged main
git stash list
git log --oneline
git status --short
git gc --quiet
git push --quiet origin branch
