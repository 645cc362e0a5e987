# Calls the scripts. The build itself is CMake (see CMakePresets.json).

.PHONY: demo test bench fuzz format lint clean
demo test bench format lint:
	@scripts/$@

# make fuzz SECONDS=600
fuzz:
	@scripts/fuzz $(SECONDS)

clean:
	rm -rf build
