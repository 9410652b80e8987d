cd app
npm install --silent --offline --no-audit --no-fund --no-update-notifier ./small-1.0.0.tgz
node_modules/.bin/small
cat installed.txt
