"""Conan 2 recipe: conan create packaging/conan. LibTorch is yours: set LOCKSTEP_TORCH_DIR, or the conf user.lockstep:torch_dir."""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class LockstepConan(ConanFile):
    name = "lockstep"
    description = "Synchronous data-parallel training on LibTorch"
    license = "MIT"
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False]}
    default_options = {"shared": False, "fPIC": True}
    implements = ["auto_shared_fpic"]

    @property
    def _checkout(self):
        return os.path.join(self.recipe_folder, "..", "..")

    @property
    def _torch_dir(self):
        return self.conf.get("user.lockstep:torch_dir") or os.environ.get("LOCKSTEP_TORCH_DIR", "")

    def set_version(self):
        text = load(self, os.path.join(self._checkout, "CMakeLists.txt"))
        self.version = re.search(r"project\(Lockstep VERSION ([\d.]+)", text).group(1)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "lockstep/*"):
            copy(self, pattern, src=self._checkout, dst=self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        self.requires("zlib/[>=1.2.11 <2]")
        self.requires("nlohmann_json/[>=3.10 <4]", visible=False)

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("Lockstep is for Linux")

    def validate_build(self):
        if not os.path.exists(os.path.join(self._torch_dir, "lib", "libtorch_cpu.so")):
            raise ConanInvalidConfiguration(
                f"LOCKSTEP_TORCH_DIR must be the folder of a LibTorch, got '{self._torch_dir}': set it in the environment, "
                "or give -c user.lockstep:torch_dir=..."
            )

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["LOCKSTEP_TORCH_DIR"] = self._torch_dir
        for part in ("TESTS", "EXAMPLES", "BENCH"):
            toolchain.cache_variables[f"LOCKSTEP_BUILD_{part}"] = False
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # Programs use the LockstepConfig.cmake that the build installs, which also finds LibTorch.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "Lockstep")]
        self.cpp_info.libs = ["lockstep"]
