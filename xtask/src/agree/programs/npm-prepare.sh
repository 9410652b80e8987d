mkdir -p small/lib app
cat > small/package.json <<'END'
{"name":"small","version":"1.0.0","main":"lib/index.js","bin":{"small":"lib/index.js"}}
END
printf '#!/usr/bin/env node\nconsole.log(7);\n' > small/lib/index.js
(cd small && npm pack --silent --pack-destination ../app > /dev/null)
cat > app/package.json <<'END'
{"name":"app","version":"1.0.0","private":true,"scripts":{"postinstall":"echo installed > installed.txt"}}
END
rm -rf "$HOME/.npm"
