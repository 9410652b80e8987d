python3 -m venv venv
venv/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-index ./small-1.0-py3-none-any.whl
venv/bin/python -m small
