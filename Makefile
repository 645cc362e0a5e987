# Calls the scripts. The build itself is CMake (see CMakePresets.json).

.PHONY: demo test bench fuzz format lint site clean
demo test bench format lint site:
	@scripts/$@

# make fuzz SECONDS=600
fuzz:
	@scripts/fuzz $(SECONDS)

clean:
	rm -rf build
