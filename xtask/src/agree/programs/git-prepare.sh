# What several threads pack depends on their timing.
git config --global pack.threads 1
git init --quiet --initial-branch=main origin
cd origin
mkdir -p src/deep docs
for i in $(seq 40); do
    seq "$i" $((i * 20)) > "src/file.$i"
    echo "page $i" > "docs/page $i.md"
done
ln -s ../docs src/deep/link
chmod 755 src/file.1
git add .
git commit --quiet -m first
seq 3 > docs/second
git add .
git commit --quiet -m second
