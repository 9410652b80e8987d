python3 - <<'END'
import base64, hashlib, zipfile
files = {
    "small/__init__.py": "VALUE = 7\n",
    "small/deep/__init__.py": "",
    "small/__main__.py": "import small\nprint(small.VALUE)\n",
    "small-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
    "small-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "small-1.0.dist-info/entry_points.txt": "[console_scripts]\nsmall = small.__main__:main\n",
}
record = ""
with zipfile.ZipFile("small-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in files.items():
        wheel.writestr(name, text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
    wheel.writestr("small-1.0.dist-info/RECORD", record + "small-1.0.dist-info/RECORD,,\n")
END
