# Forwards to the scripts; the build itself is CMake (see CMakePresets.json).

.PHONY: demo test bench fuzz format lint clean
demo test bench fuzz format lint:
	@scripts/$@

clean:
	rm -rf build
