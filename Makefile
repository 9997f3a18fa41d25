# Lockstep: benchmark and conformance suite for data-parallel mixed-precision training.
# `make help` tells what there is. The main job is `make bench NGPUS=8`.

# PLANTS=1: the build in which planted faults can be switched on (kernels/core/plant.h).
BUILD ?= build$(if $(PLANTS),/planted)
PREFIX ?= /usr/local
CC := gcc
CXX := g++
OPTIMISE ?= -O2 -g
WARN := -Wall -Wextra -Wno-missing-field-initializers -Wpedantic -Werror
CPPFLAGS += -I. -MMD -MP $(if $(PLANTS),-DLS_PLANTS)
CFLAGS += -std=c11 -D_GNU_SOURCE= $(OPTIMISE) -fPIC -fopenmp $(WARN) $(SANITIZE)
CXXFLAGS += -std=c++17 $(OPTIMISE) -fPIC $(WARN) $(SANITIZE)
LDFLAGS += $(SANITIZE) $(if $(PLANTS),-Wl$(comma)--export-dynamic-symbol=ls_plant_*)
LDLIBS := -lcjson -ldl -lm -lpthread

comma := ,

# One short line a file; `make V=1` shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),@:,@echo "  $(1)")

.DEFAULT_GOAL := all
.SUFFIXES:
.DELETE_ON_ERROR:
.PHONY: all units emulated programs found deps bench check conform detect compare peers gpu-check help lint format \
	asan ubsan tsan fuzz dist install clean

# DEPS: packages unpacked into a folder (dpkg -x), for machines where nothing can be installed.
ifneq ($(DEPS),)
DEPS_LIB := $(abspath $(DEPS))/usr/lib/$(shell uname -m)-linux-gnu
CPPFLAGS += -isystem $(abspath $(DEPS))/usr/include
LDFLAGS += -L$(DEPS_LIB) -Wl,-rpath,$(DEPS_LIB) -Wl,-rpath-link,$(DEPS_LIB)
endif

# ---- what this machine can build ---------------------------------------------------------------
header = $(shell printf '\#include <%s>\n' $(1) | $(CC) $(if $(DEPS),-isystem $(abspath $(DEPS))/usr/include) -x $(or $(2),c) -E - >/dev/null 2>&1 && echo yes)
HAVE_DNNL := $(call header,oneapi/dnnl/dnnl.h)
HAVE_GLOO := $(call header,gloo/context.h,c++)
HAVE_CHECK := $(call header,check.h)
HAVE_GNUPLOT := $(shell command -v gnuplot 2>/dev/null)

# CUDA's compiler, headers and libraries: toolkit, system or Python wheels.
CUDA_FOUND := $(shell sh harness/find_cuda.sh)
found_cuda = $(patsubst $(1)=%,%,$(filter $(1)=%,$(CUDA_FOUND)))
NVCC := $(call found_cuda,NVCC)
# A runtime that does not know an architecture yet is not asked for it, unless somebody insists.
CUDA_ARCH ?= $(if $(NVCC),$(filter $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code)),80 90 100))
CUDA_PARTS := CUDART CUDNN CUBLASLT
CUDA_MISSING := $(if $(NVCC),,nvcc) $(foreach part,$(CUDA_PARTS),$(if $(call found_cuda,$(part)_LIB),,$(part)))
HAVE_CUDA := $(if $(strip $(CUDA_MISSING)),,yes)
HAVE_NCCL := $(if $(and $(call found_cuda,CUDART_LIB),$(call found_cuda,NCCL_LIB)),yes)
# A sanitizer of threads does not follow fibers.
HAVE_EMULATION := $(if $(findstring thread,$(SANITIZE)),,$(if $(filter-out $(foreach part,$(CUDA_PARTS),$(if $(call found_cuda,$(part)_INC),$(part))),$(CUDA_PARTS)),,yes))

# ---- sources, found by folder ------------------------------------------------------------------
sources = $(wildcard $(addsuffix /*.c,$(1)))
objects = $(patsubst %,$(BUILD)/obj/%.o,$(1))

CORE := $(call sources,kernels/core) kernels/load.c kernels/optimizers.c
HARNESS := $(call sources,harness/* harness/report/*)
ORACLE := $(call sources,reference/oracle)
REFERENCE := $(filter-out reference/oracle/% reference/comm/nccl%,$(call sources,reference/*))
SUITE := $(filter-out suite/unit/% suite/emulation/%,$(call sources,suite/* suite/cases/*))
# What every backend compiles: the lowering of a network, and what plans have in common.
SHARED_KERNELS := $(addprefix kernels/,lower.c grad_layout.c plan_check.c ready.c)
CPU := $(call sources,kernels/cpu kernels/math) $(SHARED_KERNELS)
CUDA := $(call sources,kernels/cuda) $(SHARED_KERNELS)
CUDA_KERNELS := $(wildcard kernels/cuda/*.cu)
# The judge on a device: its own kernels.
ORACLE_KERNELS := $(wildcard reference/oracle/cuda/*.cu)
NCCL := $(wildcard reference/comm/nccl*.c)
EMULATION := $(filter-out suite/emulation/fake_nvml.c suite/emulation/test_% \
	$(if $(call found_cuda,NCCL_INC),,suite/emulation/nccl%), \
	$(wildcard suite/emulation/*.c))
UNITS := $(filter-out $(if $(HAVE_EMULATION),,test_cuda_%) $(if $(HAVE_CUDA),,test_cudnn_%) \
	$(if $(call found_cuda,NCCL_INC),,test_cuda_nccl), \
	$(basename $(notdir $(wildcard suite/unit/test_*.c suite/emulation/test_*.c suite/emulation/test_*.cc))))

LIBS := $(BUILD)/libls_suite.a $(BUILD)/libls_oracle.a $(BUILD)/libls_reference.a \
	$(BUILD)/libls_harness.a $(BUILD)/libls_core.a
PROGRAMS := $(addprefix $(BUILD)/,lockstep lockstep-train lockstep-launch lockstep-collectives)
ENGINES := $(if $(HAVE_DNNL),$(BUILD)/lib/ls_cpu.so) $(if $(HAVE_GLOO),$(BUILD)/lib/ls_gloo.so) \
	$(if $(HAVE_CUDA),$(BUILD)/lib/ls_cuda.so $(BUILD)/lib/ls_oracle_cuda.so) \
	$(if $(and $(HAVE_NCCL),$(NCCL)),$(BUILD)/lib/ls_nccl.so)
EMULATED_LIB := $(BUILD)/emulated/lib
EMULATED := $(if $(HAVE_EMULATION),$(addprefix $(EMULATED_LIB)/,libls_emulated.so ls_cuda.so ls_oracle_cuda.so \
	$(if $(and $(call found_cuda,NCCL_INC),$(NCCL)),ls_nccl.so) $(if $(HAVE_DNNL),ls_cpu.so) \
	$(if $(HAVE_GLOO),ls_gloo.so)))
UNIT_PROGRAMS := $(addprefix $(BUILD)/unit/,$(UNITS))

all: programs found
programs: $(PROGRAMS) $(ENGINES)
units: $(UNIT_PROGRAMS) $(PROGRAMS) $(ENGINES) $(EMULATED)
emulated: programs $(EMULATED)
found: programs
	@echo "CPU backend:    $(if $(HAVE_DNNL),yes (oneDNN),no: oneDNN's headers not found (libdnnl-dev))"
	@echo "gloo engine:    $(if $(HAVE_GLOO),yes,no: Gloo's headers not found (libgloo-dev))"
	@echo "CUDA backend:   $(if $(HAVE_CUDA),yes (CUDA $(call found_cuda,CUDART_VERSION)$(comma) \
cuDNN $(call found_cuda,CUDNN_VERSION)$(comma) cuBLASLt $(call found_cuda,CUBLASLT_VERSION); \
$(addprefix sm_,$(CUDA_ARCH))),no: not found: $(strip $(CUDA_MISSING)))"
	@echo "NCCL engine:    $(if $(HAVE_NCCL),yes (NCCL $(call found_cuda,NCCL_VERSION)),no: not found: $(if $(call found_cuda,CUDART_LIB),NCCL,CUDART))"
	@echo "CUDA emulation: $(if $(HAVE_EMULATION),yes (for tests: LS_LIB_DIR=$(EMULATED_LIB)$(comma) after 'make emulated'),no: needs the headers of $(CUDA_PARTS))"
	@echo "unit tests:     $(if $(HAVE_CHECK),yes (Check),no: check.h not found (check))"
	@echo "plots:          $(if $(HAVE_GNUPLOT),yes (gnuplot),no: gnuplot not found; reports come without pictures)"

# ---- libraries, programs, engines --------------------------------------------------------------
$(BUILD)/libls_core.a: $(call objects,$(CORE))
$(BUILD)/libls_harness.a: $(call objects,$(HARNESS))
$(BUILD)/libls_reference.a: $(call objects,$(REFERENCE))
$(BUILD)/libls_oracle.a: $(call objects,$(ORACLE))
$(BUILD)/libls_suite.a: $(call objects,$(SUITE))
$(BUILD)/libls_%.a:
	@mkdir -p $(@D)
	@rm -f $@
	@ar cqs $@ $^

# Without these headers nothing compiles: said once, instead of by the compiler for each file.
.PHONY: needed needed_by_units
needed:
	@sh harness/setup.sh build
needed_by_units:
	@sh harness/setup.sh units
$(call objects,$(wildcard suite/unit/*.c suite/emulation/test_*)): | needed_by_units

$(BUILD)/obj/%.c.o: %.c | needed
	@mkdir -p $(@D)
	$(call say,cc  $<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(EXTRA) -c $< -o $@
$(BUILD)/obj/%.cc.o: %.cc | needed
	@mkdir -p $(@D)
	$(call say,c++ $<)
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(EXTRA) -c $< -o $@

# The oracle is plain loops, but many of them. Products and sums stay apart, as they are written.
$(call objects,$(ORACLE)): EXTRA += -O3 -ffp-contract=off

# Sums of a few operations an element: worth the vectoriser.
$(call objects,reference/comm/gloo_sum.c): EXTRA += -O3

# The trainer does not know the suite; the launcher knows only the harness.
$(BUILD)/lockstep: $(call objects,suite/main.c) $(LIBS)
	$(call say,ld  $@)
	$(Q)$(CC) $(LDFLAGS) -fopenmp $^ -ljpeg $(LDLIBS) -o $@
$(BUILD)/lockstep-train $(BUILD)/lockstep-collectives: $(BUILD)/lockstep-%: \
		$(BUILD)/obj/reference/%.c.o $(BUILD)/libls_reference.a \
		$(BUILD)/libls_harness.a $(BUILD)/libls_core.a
	$(call say,ld  $@)
	$(Q)$(CC) $(LDFLAGS) $^ -ljpeg $(LDLIBS) -o $@
$(BUILD)/lockstep-launch: $(call objects,harness/launch.c) $(BUILD)/libls_harness.a \
		$(BUILD)/libls_core.a
	$(call say,ld  $@)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

# Backends and engines, loaded at run time.
$(BUILD)/lib/ls_cpu.so: $(call objects,$(CPU)) $(BUILD)/libls_core.a
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CC) -shared $(LDFLAGS) -fopenmp $^ -ldnnl $(LDLIBS) -o $@
GLOO := $(addprefix reference/comm/,gloo.cc gloo_sum.c comm.c self.c)
$(BUILD)/lib/ls_gloo.so: $(call objects,$(GLOO)) $(BUILD)/libls_harness.a $(BUILD)/libls_core.a
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CXX) -shared $(LDFLAGS) $^ -lgloo $(LDLIBS) -o $@

# ---- CUDA: with nvcc for devices, and a second time for the CPU, where tests run it ---------------
cuda_folders = $(sort $(foreach part,$(1),$(call found_cuda,$(part)_INC)))
cuda_includes = $(addprefix -isystem ,$(filter-out /usr/include,$(call cuda_folders,$(1))))
cuda_libraries = $(foreach part,$(1),$(call found_cuda,$(part)_LIB) \
	-Wl$(comma)-rpath$(comma)$(dir $(call found_cuda,$(part)_LIB)))
CUDA_CODE := $(foreach arch,$(CUDA_ARCH),-gencode arch=compute_$(arch),code=sm_$(arch)) \
	-gencode arch=compute_$(lastword $(CUDA_ARCH)),code=compute_$(lastword $(CUDA_ARCH))
# -fmad=false: products and sums are rounded as they are written, as on the CPU.
NVCCFLAGS := -std=c++17 -O3 -lineinfo -fmad=false -Werror all-warnings \
	-Xcompiler -fPIC,-Wall,-Wextra,-Werror
# A name that nobody defines is found here and not on the machine with the GPU. (Sanitizers' names
# are the program's.)
WHOLE := $(if $(SANITIZE),,-Wl,--no-undefined)
$(BUILD)/obj/%.cu.o: %.cu | needed
	@mkdir -p $(@D)
	$(call say,nvcc $<)
	$(Q)$(NVCC) $(CPPFLAGS) -MF $(@:.o=.d) $(call cuda_includes,$(CUDA_PARTS)) $(NVCCFLAGS) $(CUDA_CODE) -c $< -o $@
$(call objects,$(wildcard kernels/cuda/*.c)): EXTRA += $(call cuda_includes,$(CUDA_PARTS) NVTX)
$(BUILD)/lib/ls_cuda.so: $(call objects,$(CUDA) $(CUDA_KERNELS)) $(BUILD)/libls_core.a
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CXX) -shared $(LDFLAGS) $(WHOLE) $^ $(call cuda_libraries,$(CUDA_PARTS)) $(LDLIBS) -o $@
ORACLE_ROUNDING := reference/oracle/bits.c
$(BUILD)/lib/ls_oracle_cuda.so: $(call objects,$(ORACLE_KERNELS) $(ORACLE_ROUNDING)) \
		$(BUILD)/libls_core.a
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CXX) -shared $(LDFLAGS) $(WHOLE) $^ $(call cuda_libraries,CUDART) $(LDLIBS) -o $@
NCCL_PARTS := $(NCCL) reference/comm/comm.c kernels/cuda/cuda_check.c
$(call objects,$(NCCL)): EXTRA += $(call cuda_includes,CUDART NCCL)
$(BUILD)/lib/ls_nccl.so: $(call objects,$(NCCL_PARTS)) $(BUILD)/libls_harness.a $(BUILD)/libls_core.a
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CC) -shared $(LDFLAGS) $(WHOLE) $^ $(call cuda_libraries,CUDART NCCL) $(LDLIBS) -o $@

$(BUILD)/emulated/obj/%.cu.o: %.cu | needed
	@mkdir -p $(@D)
	$(call say,c++ $< (emulated))
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) -DLS_CUDA_EMULATED -ffp-contract=off -Isuite/emulation \
		$(call cuda_includes,$(CUDA_PARTS)) -x c++ -c $< -o $@
$(call objects,$(EMULATION)): EXTRA += -ffp-contract=off $(call cuda_includes,$(CUDA_PARTS) NCCL)
# Products of whole trainings.
$(call objects,$(wildcard suite/emulation/emulated_cu*)): EXTRA += -O3
$(EMULATED_LIB)/libls_emulated.so: $(call objects,$(EMULATION)) $(BUILD)/libls_core.a
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(LDFLAGS) $^ $(LDLIBS) -o $@
EMULATED_HERE = $(EMULATED_LIB)/libls_emulated.so -Wl,-rpath,'$$ORIGIN'
$(EMULATED_LIB)/ls_cuda.so: $(call objects,$(CUDA)) \
		$(patsubst %,$(BUILD)/emulated/obj/%.o,$(CUDA_KERNELS)) $(BUILD)/libls_core.a \
		| $(EMULATED_LIB)/libls_emulated.so
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CXX) -shared -Wl,-soname,$(@F) $(LDFLAGS) $(WHOLE) $^ $(EMULATED_HERE) $(LDLIBS) -o $@
$(EMULATED_LIB)/ls_oracle_cuda.so: $(patsubst %,$(BUILD)/emulated/obj/%.o,$(ORACLE_KERNELS)) \
		$(call objects,$(ORACLE_ROUNDING)) $(BUILD)/libls_core.a | $(EMULATED_LIB)/libls_emulated.so
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CXX) -shared $(LDFLAGS) $(WHOLE) $^ $(EMULATED_HERE) $(LDLIBS) -o $@
$(EMULATED_LIB)/ls_nccl.so: $(call objects,$(NCCL_PARTS)) $(BUILD)/libls_harness.a \
		$(BUILD)/libls_core.a | $(EMULATED_LIB)/libls_emulated.so
	$(call say,ld  $@)
	$(Q)$(CC) -shared $(LDFLAGS) $(WHOLE) $^ $(EMULATED_HERE) $(LDLIBS) -o $@
$(EMULATED_LIB)/ls_cpu.so $(EMULATED_LIB)/ls_gloo.so: $(EMULATED_LIB)/%: $(BUILD)/lib/%
	@mkdir -p $(@D)
	@ln -sf ../../lib/$* $@

# Tests of CUDA code call it on the emulation; the emulation's own needs nothing else.
CUDA_TESTS := $(addprefix $(BUILD)/unit/,$(filter test_cuda_%,$(UNITS)))
$(patsubst $(BUILD)/unit/%,$(BUILD)/obj/suite/emulation/%.c.o,$(CUDA_TESTS)): \
	EXTRA += $(call cuda_includes,$(CUDA_PARTS))
$(BUILD)/obj/suite/emulation/test_cuda_%.cc.o: EXTRA += -DLS_CUDA_EMULATED -ffp-contract=off \
	-Isuite/emulation $(call cuda_includes,CUDART)
EMULATED_THERE = -Wl,-rpath,'$$ORIGIN/../emulated/lib' $(EMULATED_LIB)/libls_emulated.so
$(BUILD)/unit/test_cuda_multi: | $(BUILD)/lib/ls_cpu.so
# These call kernels themselves, without the backend's table and its libraries.
KERNEL_TESTS := $(addprefix $(BUILD)/unit/test_cuda_,kernels layout norm multi)
$(KERNEL_TESTS): $(BUILD)/unit/%: $(BUILD)/obj/suite/emulation/%.c.o \
		$(patsubst %,$(BUILD)/emulated/obj/%.o,$(CUDA_KERNELS)) \
		$(call objects,$(addprefix kernels/cuda/cuda_,check.c memory.c wait.c)) \
		$(BUILD)/libls_core.a | $(EMULATED_LIB)/libls_emulated.so
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CXX) $(LDFLAGS) $^ $(EMULATED_THERE) -lcheck -lsubunit -lrt $(LDLIBS) -o $@
# These load backends as programs do: linked, one's functions would stand before the other's.
PLAN_TESTS := $(addprefix $(BUILD)/unit/test_cuda_,plan steps)
$(PLAN_TESTS): | $(EMULATED)
$(filter-out %/test_cuda_launch %/test_cuda_nccl $(KERNEL_TESTS) $(PLAN_TESTS),$(CUDA_TESTS)): $(BUILD)/unit/%: $(BUILD)/obj/suite/emulation/%.c.o \
		$(EMULATED_LIB)/ls_cuda.so $(LIBS)
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CC) $(LDFLAGS) -fopenmp $^ $(EMULATED_THERE) -lcheck -lsubunit -lrt -ljpeg $(LDLIBS) -o $@
$(BUILD)/unit/test_cuda_launch: $(BUILD)/obj/suite/emulation/test_cuda_launch.cc.o \
		$(BUILD)/obj/kernels/cuda/cuda_check.c.o $(BUILD)/libls_core.a | $(EMULATED_LIB)/libls_emulated.so
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CXX) $(LDFLAGS) $^ $(EMULATED_THERE) -lcheck -lsubunit -lrt $(LDLIBS) -o $@

# What the real cuDNN offers: it takes a description of a device for one.
CUDNN_ENGINES := $(call objects,$(wildcard kernels/cuda/conv*.c) $(SHARED_KERNELS) \
	$(addprefix kernels/cuda/cuda_,check.c memory.c))
CUDNN_TESTS := $(addprefix $(BUILD)/unit/test_cudnn_,engines fused)
$(BUILD)/obj/suite/emulation/test_cudnn_%.c.o: EXTRA += $(call cuda_includes,$(CUDA_PARTS))
$(CUDNN_TESTS): $(BUILD)/unit/%: $(BUILD)/obj/suite/emulation/%.c.o $(CUDNN_ENGINES) $(LIBS)
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CC) $(LDFLAGS) -fopenmp $^ $(call cuda_libraries,CUDART CUDNN) -lcheck -lsubunit -lrt -ljpeg $(LDLIBS) -o $@
# They load what they need.
$(addprefix $(BUILD)/unit/test_cuda_,oracle audit): | $(EMULATED_LIB)/ls_oracle_cuda.so
# The engine on the runtime alone.
$(BUILD)/unit/test_cuda_nccl: $(BUILD)/obj/suite/emulation/test_cuda_nccl.c.o $(LIBS) \
		| $(EMULATED_LIB)/libls_emulated.so $(EMULATED_LIB)/ls_nccl.so
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CC) $(LDFLAGS) -fopenmp $^ $(EMULATED_THERE) -lcheck -lsubunit -lrt -ljpeg $(LDLIBS) -o $@

# Some reach into a backend, behind its table: vector variants, single operations.
MULTI_TESTS := $(addprefix $(BUILD)/unit/,test_multi test_multi_optim)
$(MULTI_TESTS): $(call objects,$(wildcard kernels/cpu/multi*.c))
$(MULTI_TESTS): LDLIBS := $(BUILD)/libls_core.a $(LDLIBS)
CPU_TESTS := $(addprefix $(BUILD)/unit/,test_cpu_ops test_cpu_loops)
$(CPU_TESTS): $(call objects,$(CPU))
$(CPU_TESTS): LDLIBS := $(BUILD)/libls_core.a -ldnnl $(LDLIBS)
# NVIDIA's management library and driver, played from a text file; one of years ago, too.
FAKE_NVML := $(addprefix $(BUILD)/unit/,libfake_nvml.so libfake_nvml_old.so)
$(BUILD)/unit/libfake_nvml_old.so: EXTRA += -DLS_FAKE_OLD
$(FAKE_NVML): suite/emulation/fake_nvml.c harness/machine/nvml_abi.h
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CC) -I. $(CFLAGS) $(EXTRA) -shared $< -o $@
$(BUILD)/unit/test_nvml: | $(FAKE_NVML) $(BUILD)/lockstep
define link_unit
@mkdir -p $(@D)
$(call say,ld  $@)
$(Q)$(CC) $(LDFLAGS) -fopenmp $^ -lcheck -lsubunit -lrt -ljpeg $(LDLIBS) -o $@
endef
# suite/unit/test_X.c is one Check program; tests of the emulation lie beside it.
$(PLAN_TESTS): $(BUILD)/unit/%: $(BUILD)/obj/suite/emulation/%.c.o $(LIBS)
	$(link_unit)
$(BUILD)/unit/%: $(BUILD)/obj/suite/unit/%.c.o $(LIBS)
	$(link_unit)
.SECONDARY:

# ---- the jobs people run -----------------------------------------------------------------------
# What a target takes stands in a table of suite/make. given: the variables of make's command line, and
# those of the environment that the table knows.
known = $(shell sed -n 's/^LS_VARIABLE.\([A-Z_]*\),.*/\1/p' suite/make/$(1).def)
MAKE_OWN := CUDA_ARCH=% DEPS=% V=% BUILD=% PREFIX=% DESTDIR=% OPTIMISE=% SANITIZE=% PLANTS=%
given = $(filter-out $(MAKE_OWN),$(MAKEOVERRIDES)) \
	$(foreach name,$(call known,$(1)),$(if $(filter environment,$(origin $(name))),$(name)='$($(name))'))
checked = @sh harness/variables.sh suite/make/$(1).def $(call given,$(1))
OPTIONS = $(if $(CLAIM),--claim '$(CLAIM)') $(if $(SUBJECT),--subject '$(SUBJECT)') \
	$(if $(CASE),--case '$(CASE)') $(if $(LIST),--list-file '$(LIST)') \
	$(if $(SEED),--seed $(SEED)) $(if $(SHARD),--shard $(SHARD)) \
	$(if $(DEVICE),--device $(DEVICE)) $(if $(OUT),--out '$(OUT)') \
	$(if $(RESUME),--out '$(RESUME)' --resume) $(if $(filter 1,$(FAIL_EARLY)),--fail-early) \
	$(if $(filter 1,$(DRYRUN)),--list)

bench:
	$(call checked,bench)
	@LS_BUILD=$(BUILD) sh harness/setup.sh bench $(INSTALL)
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@$(BUILD)/lockstep bench $(call given,bench)

check:
	$(call checked,check)
	@LS_BUILD=$(BUILD) sh harness/setup.sh check $(INSTALL)
	@$(MAKE) --no-print-directory -s -j$$(nproc) all units
	@sh suite/unit/run.sh $(BUILD)

deps:
	@LS_BUILD=$(BUILD) sh harness/setup.sh deps yes

conform:
	$(call checked,conform)
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@$(BUILD)/lockstep conform $(OPTIONS)

# Planted faults: a build in which they can be switched on, and one for each that is a patch.
PATCHES := $(wildcard suite/plants/*.patch)
detect:
	$(call checked,detect)
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@$(MAKE) --no-print-directory -s PLANTS=1 programs
	@$(if $(PATCHES),sh suite/plants/build.sh $(BUILD) $(PATCHES))
	@$(BUILD)/lockstep detect $(if $(filter 1,$(FULL)),--full) $(if $(FAULT),--fault '$(FAULT)') \
		$(if $(SEED),--seed $(SEED)) $(if $(OUT),--out '$(OUT)') $(if $(PYTHON),--python '$(PYTHON)')

# The first interpreter that has PyTorch, or the one given as PYTHON.
compare:
	$(call checked,compare)
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@python=$(PYTHON); \
	for found in python3 /usr/bin/python3; do \
		[ -n "$$python" ] || ! $$found -c 'import torch, numpy' 2>/dev/null || python=$$found; \
	done; \
	$(BUILD)/lockstep versus --python "$${python:-python3}" $(if $(PAIRS),--pairs $(PAIRS)) \
		$(if $(ONLY),--only '$(ONLY)') $(if $(OUT),--out '$(OUT)')

# Everything that needs a GPU, part by part (PART=build|correct|speed|peer).
gpu-check:
	@sh suite/make/gpu_check.sh $(BUILD) $(call given,gpu_check) $(if $(DEPS),DEPS='$(DEPS)')

# The example, the adapter and the wrong trainers of suite/peers, on the PyTorch that is there.
peers:
	$(call checked,peers)
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@sh suite/peers/check.sh $(BUILD) $(PYTHON)

help:
	@sed -n 's/^#: //p' Makefile
#: make                 build what this machine can, and print what was found
#: make bench NGPUS=8   the main job: a matrix of training jobs, judged, reported
#:                      (DRYRUN=1 prints the jobs; PROFILE=smoke takes a minute;
#:                      RESUME=results/runs/... goes on with an interrupted run)
#: make check           unit tests and the must-pass conformance list
#: make conform         the conformance cases (CLAIM=... SUBJECT="..." CASE=GLOB)
#: make detect          planted faults, and PyTorch scripts with users' mistakes,
#:                      each of which must be caught (FAULT=GLOB; PYTHON=... for
#:                      the scripts; FULL=1: all, with 100 clean passes)
#: make compare         speed beside PyTorch, same model, batch, threads and data
#: make gpu-check       everything that needs a GPU, in parts under 8 minutes
#:                      (PART=build, correct, speed, peer), one report
#: make peers           PyTorch as a subject, and trainers with users' mistakes
#: make emulated        the CUDA backend for the CPU, for tests: --device cuda
#:                      then runs with LS_LIB_DIR=build/emulated/lib
#: make deps            install what bench and check need (Debian, Ubuntu)
#: make lint | format   check the house rules | format the sources
#: make asan | ubsan | tsan   unit tests and short jobs under a sanitizer
#: make fuzz            mutated input for all readers, FUZZ_S=60 seconds
#: make dist | install  relocatable tarball | copy to PREFIX (/usr/local)
#: make clean           remove build/ (results stay)
#:
#: Variables: build/lockstep bench --help, and suite/make/*.def. make ends
#: with 2 on every failure and prints `Error N` with the real code;
#: build/lockstep ends with that code.

# ---- the house ---------------------------------------------------------------------------------
C_FILES = $(shell git ls-files '*.c' '*.h' '*.cc' '*.hh' '*.cu' '*.inc')
lint: units
	@sh suite/unit/lint.sh $(BUILD)
format:
	clang-format -i $(C_FILES)

# Sanitizers in build folders of their own. Python and OpenMP keep memory until the end: leaks are
# looked for in our programs only.
asan ubsan tsan:
	$(call checked,check)
	@LS_BUILD=$(BUILD) sh harness/setup.sh check $(INSTALL)
	@$(MAKE) --no-print-directory -s -j$$(nproc) BUILD=build/$@ OPTIMISE='-O1 -g' \
		SANITIZE='$(SANITIZE_$@)' units
	@sh suite/unit/sanitize.sh build/$@ $@
# Mutated input for every reader of what others wrote: FUZZ_S seconds, the same ones each time.
FUZZ_S ?= 60
FUZZ_SEED ?= 1
fuzz:
	$(call checked,fuzz)
	@LS_BUILD=$(BUILD) sh harness/setup.sh check $(INSTALL)
	@$(MAKE) --no-print-directory -s -j$$(nproc) BUILD=build/$@ OPTIMISE='-O1 -g' \
		SANITIZE='-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all' build/$@/unit/fuzz
	@ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 build/$@/unit/fuzz $(FUZZ_S) $(FUZZ_SEED)

# The address sanitizer finds C++'s throw at start only: the engines that throw are loaded later.
SANITIZE_asan := -fsanitize=address -fno-omit-frame-pointer \
	-Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state
SANITIZE_ubsan := -fsanitize=undefined -fno-sanitize-recover=undefined
SANITIZE_tsan := -fsanitize=thread

INSTALLED = $(PROGRAMS)
install: all
	install -d $(DESTDIR)$(PREFIX)/lib/lockstep/lib $(DESTDIR)$(PREFIX)/lib/lockstep/plots \
		$(DESTDIR)$(PREFIX)/bin
	install $(INSTALLED) $(DESTDIR)$(PREFIX)/lib/lockstep
	install $(ENGINES) $(DESTDIR)$(PREFIX)/lib/lockstep/lib
	install -m 644 plots/*.gp $(DESTDIR)$(PREFIX)/lib/lockstep/plots
	for folder in claims lists peers peers/wrong; do \
		install -d $(DESTDIR)$(PREFIX)/lib/lockstep/suite/$$folder; \
		install -m 644 suite/$$folder/*.* $(DESTDIR)$(PREFIX)/lib/lockstep/suite/$$folder; done
	install -m 644 suite/requirements.txt $(DESTDIR)$(PREFIX)/lib/lockstep/suite
	for program in $(notdir $(INSTALLED)); do \
		ln -sf ../lib/lockstep/$$program $(DESTDIR)$(PREFIX)/bin/$$program; done
dist: all
	@sh harness/dist.sh $(BUILD)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj $(BUILD)/emulated/obj -name '*.d' 2>/dev/null)
