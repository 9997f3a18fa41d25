# Lockstep: benchmark and conformance suite for data-parallel mixed-precision training.
# `make help` lists the targets. The main job is `make bench NGPUS=8`.

# ---- values of the command line and the environment --------------------------------------------
# A value is text: $(...) in it is not expanded. Variables of suite/make/variables.def reach a program in
# the environment, never in the text of a command. All others become parts of commands, so a character that a
# shell or make interprets is refused.
comma := ,
literal = $(eval $(if $(filter $(1),$(GIVEN) $(KNOWN)),override) export $(1) := $$(value $(1)))
IN_COMMANDS := BUILD PREFIX DESTDIR DEPS V PLANTS CUDA_ARCH OPTIMISE SANITIZE CPPFLAGS CFLAGS CXXFLAGS LDFLAGS
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
$(foreach name,$(GIVEN),$(call literal,$(name)))
known = $(shell sed -n 's/^LS_VARIABLE.\([A-Z_]*\), "\([^"]* \)\{0,1\}$(1)[" ].*/\1/p' suite/make/variables.def)
KNOWN := $(filter-out $(IN_COMMANDS),$(call known,[a-z-]*))
INHERITED := $(foreach name,$(sort $(IN_COMMANDS) $(KNOWN)),$(if $(findstring environment,$(origin $(name))),$(name)))
$(foreach name,$(INHERITED),$(call literal,$(name)))
define newline


endef
interpreted = $(foreach one,; & | < > ( ) [ ] { } * ? ! ~ $$ ` " ' \ \#,$(findstring $(one),$(1)))$(if $(findstring $(newline),$(1)),newline)
shown = $(subst $(newline),\n,$(1))
refuse = $(error lockstep: error: $(1)=$(call shown,$(value $(1))): allowed: $(2))
$(foreach name,$(GIVEN) $(filter $(IN_COMMANDS),$(INHERITED)),$(if $(filter $(name),$(KNOWN)),,$(if $(strip \
	$(call interpreted,$(name)$(value $(name)))),$(call refuse,$(name),letters$(comma) digits$(comma) spaces and . _ - + / = : @ % ^ $(comma)))))
$(foreach name,BUILD PREFIX DESTDIR DEPS,$(if $(word 2,$(value $(name))),$(call refuse,$(name),a path without spaces)))

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
EXTRA = # options of single files

# A short line for each file; `make V=1` shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),@:,@echo "  $(1)")

.DEFAULT_GOAL := all
.SUFFIXES:
.DELETE_ON_ERROR:
.PHONY: all units emulated programs found deps bench check conform merge detect mutate compare peers gpu-check help lint format \
	asan ubsan tsan fuzz limits dist wheel install clean

# DEPS: packages unpacked into a folder (dpkg -x), for machines where nothing can be installed.
ifneq ($(DEPS),)
DEPS_LIB := $(abspath $(DEPS))/usr/lib/$(shell uname -m)-linux-gnu
CPPFLAGS += -isystem $(abspath $(DEPS))/usr/include
LDFLAGS += -L$(DEPS_LIB) -Wl,-rpath,$(DEPS_LIB) -Wl,-rpath-link,$(DEPS_LIB)
endif

# ---- what this machine can build ---------------------------------------------------------------
header = $(shell printf '\#include <%s>\n' $(1) | $(CC) $(if $(DEPS),-isystem $(abspath $(DEPS))/usr/include) -x $(or $(2),c) -E - >/dev/null 2>&1 && echo yes)
HAVE_DNNL := $(call header,oneapi/dnnl/dnnl.h)
# Gloo's headers may be of a version that gloo_mesh.hh does not know: asked of the compiler, until it has compiled.
GLOO_HEADERS := $(call header,gloo/context.h,c++)
GLOO_FLAGS := -fno-access-control -idirafter reference/comm/absent
HAVE_GLOO := $(if $(GLOO_HEADERS),$(or $(if $(wildcard $(BUILD)/lib/ls_gloo.so),yes),$(shell $(CXX) -std=c++17 -I. \
	$(if $(DEPS),-isystem $(abspath $(DEPS))/usr/include) $(GLOO_FLAGS) -fsyntax-only -x c++ \
	reference/comm/gloo_mesh.hh >/dev/null 2>&1 && echo yes)))
HAVE_CHECK := $(call header,check.h)
HAVE_GNUPLOT := $(shell command -v gnuplot 2>/dev/null)

# CUDA's compiler, headers and libraries, from a toolkit, the system or Python wheels.
CUDA_FOUND := $(shell sh harness/find_cuda.sh)
found_cuda = $(patsubst $(1)=%,%,$(filter $(1)=%,$(CUDA_FOUND)))
NVCC := $(call found_cuda,NVCC)
# The architectures that this nvcc knows; CUDA_ARCH=... overrides them.
CUDA_ARCH ?= $(if $(NVCC),$(filter $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code)),80 90 100))
CUDA_PARTS := CUDART CUDNN CUBLASLT
CUDA_HEADERS := $(CUDA_PARTS) CCCL
CUDA_MISSING := $(if $(NVCC),,nvcc) $(foreach part,$(CUDA_PARTS),$(if $(call found_cuda,$(part)_LIB),,$(part))) \
	$(if $(call found_cuda,CCCL_INC),,CCCL)
HAVE_CUDA := $(if $(strip $(CUDA_MISSING)),,yes)
HAVE_NCCL := $(if $(and $(call found_cuda,CUDART_LIB),$(call found_cuda,NCCL_LIB)),yes)
# The thread sanitizer cannot follow the emulation's fibers.
HAVE_EMULATION := $(if $(findstring thread,$(SANITIZE)),,$(if $(filter-out $(foreach part,$(CUDA_HEADERS),$(if $(call found_cuda,$(part)_INC),$(part))),$(CUDA_HEADERS)),,yes))

# ---- sources, found by folder ------------------------------------------------------------------
sources = $(wildcard $(addsuffix /*.c,$(1)))
objects = $(patsubst %,$(BUILD)/obj/%.o,$(1))

# With the lowering of a network, which every backend and the traffic model share.
CORE := $(call sources,kernels/core) $(addprefix kernels/,load.c optimizers.c lower.c grad_layout.c \
	passes.c plan_check.c traffic.c)
HARNESS := $(call sources,harness/* harness/report/*)
ORACLE := $(call sources,reference/oracle)
REFERENCE := $(filter-out reference/oracle/% reference/comm/nccl%,$(call sources,reference/* reference/train/*))
SUITE := $(filter-out suite/unit/% suite/emulation/%,$(call sources,suite/* suite/cases/* suite/commands/* suite/observe/rules suite/observe/trace))
CPU_FILES := $(call sources,kernels/cpu kernels/cpu/multi kernels/math)
CUDA_FILES := $(call sources,kernels/cuda kernels/cuda/*)
CUDA_KERNELS := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
# The oracle's own kernels, which judge a device on the device, and those that audit a step, on either.
AUDIT_KERNELS := $(wildcard reference/oracle/audit/*.cu)
ORACLE_KERNELS := $(wildcard reference/oracle/cuda/*.cu) $(AUDIT_KERNELS)
NCCL_FILES := $(wildcard reference/comm/nccl*.c)
EMULATION := $(filter-out $(if $(call found_cuda,NCCL_INC),,suite/emulation/nccl/%),$(call sources,suite/emulation/*))
UNITS := $(filter-out $(if $(HAVE_EMULATION),,test_cuda_%) $(if $(HAVE_CUDA),,test_cudnn_%) \
	$(if $(call found_cuda,NCCL_INC),,test_cuda_nccl test_cuda_observe), \
	$(basename $(notdir $(wildcard suite/unit/*/test_*.c suite/unit/*/test_*.cc))))

# Loaded into observed jobs, by NCCL and by the dynamic linker (suite/observe/events.md).
OBSERVERS := $(BUILD)/lib/ls_nccl_profiler.so $(if $(call found_cuda,NCCL_INC),$(BUILD)/lib/ls_nccl_interpose.so)
LIBS := $(BUILD)/libls_suite.a $(BUILD)/libls_oracle.a $(BUILD)/libls_reference.a \
	$(BUILD)/libls_harness.a $(BUILD)/libls_core.a
PROGRAMS := $(addprefix $(BUILD)/,lockstep lockstep-train lockstep-launch lockstep-collectives)
ENGINES := $(if $(HAVE_DNNL),$(addprefix $(BUILD)/lib/,ls_cpu.so ls_oracle_cpu.so)) $(if $(HAVE_GLOO),$(BUILD)/lib/ls_gloo.so) \
	$(if $(HAVE_CUDA),$(BUILD)/lib/ls_cuda.so $(BUILD)/lib/ls_oracle_cuda.so) \
	$(if $(and $(HAVE_NCCL),$(NCCL_FILES)),$(BUILD)/lib/ls_nccl.so) $(OBSERVERS)
EMULATED_LIB := $(BUILD)/emulated/lib
EMULATED := $(if $(HAVE_EMULATION),$(addprefix $(EMULATED_LIB)/,libls_emulated.so ls_cuda.so ls_oracle_cuda.so \
	$(if $(and $(call found_cuda,NCCL_INC),$(NCCL_FILES)),ls_nccl.so) $(if $(HAVE_DNNL),ls_cpu.so ls_oracle_cpu.so) \
	$(if $(HAVE_GLOO),ls_gloo.so)))
UNIT_PROGRAMS := $(addprefix $(BUILD)/unit/,$(UNITS))

# The judge of PyTorch jobs alone, for make wheel.
WHEEL := $(BUILD)/wheel/lockstep
all: programs found
programs: $(PROGRAMS) $(ENGINES)
units: $(UNIT_PROGRAMS) $(PROGRAMS) $(WHEEL) $(ENGINES) $(EMULATED)
emulated: programs $(EMULATED)
found: programs
	@echo "CPU backend:    $(if $(HAVE_DNNL),yes (oneDNN),no: oneDNN's headers not found (libdnnl-dev))"
	@echo "gloo engine:    $(if $(HAVE_GLOO),yes,no: $(if $(GLOO_HEADERS),this libgloo is not one of those that \
reference/comm/gloo_mesh.hh names,Gloo's headers not found (libgloo-dev)))"
	@echo "CUDA backend:   $(if $(HAVE_CUDA),yes (CUDA $(call found_cuda,CUDART_VERSION)$(comma) \
cuDNN $(call found_cuda,CUDNN_VERSION)$(comma) cuBLASLt $(call found_cuda,CUBLASLT_VERSION); \
$(addprefix sm_,$(CUDA_ARCH))),no: not found: $(strip $(CUDA_MISSING)))"
	@echo "NCCL engine:    $(if $(HAVE_NCCL),yes (NCCL $(call found_cuda,NCCL_VERSION)),no: not found: $(if $(call found_cuda,CUDART_LIB),NCCL,CUDART))"
	@echo "CUDA emulation: $(if $(HAVE_EMULATION),yes (for tests: LS_LIB_DIR=$(EMULATED_LIB)$(comma) after 'make emulated'),no: needs the headers of $(CUDA_HEADERS))"
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

# Reports missing headers once, before the compiler does for each file.
.PHONY: needed needed_by_units
needed:
	@sh harness/setup.sh build
needed_by_units:
	@sh harness/setup.sh units
$(call objects,$(filter-out suite/unit/fuzz/%,$(wildcard suite/unit/*/*.c suite/unit/*/*.cc))): | needed_by_units

$(BUILD)/obj/%.c.o: %.c | needed
	@mkdir -p $(@D)
	$(call say,cc  $<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(EXTRA) -c $< -o $@
$(BUILD)/obj/%.cc.o: %.cc | needed
	@mkdir -p $(@D)
	$(call say,c++ $<)
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(EXTRA) -c $< -o $@

# The oracle's plain loops are slow at -O2; it may not fuse products and sums.
$(call objects,$(ORACLE)): EXTRA += -O3 -ffp-contract=off

# Sums of ranks' buffers: a few operations per element, which -O3 vectorises.
$(call objects,reference/comm/gloo_reduce.c): EXTRA += -O3
# Private parts of Gloo, and a header of its that Debian does not install.
$(call objects,reference/comm/gloo.cc): EXTRA += $(GLOO_FLAGS)

define link
@mkdir -p $(@D)
$(call say,ld  $@)
$(Q)$(1) $(LDFLAGS) $^ $(2) $(LDLIBS) -o $@
endef

# make dist puts shared libraries into a folder of their own, which programs and engines name, so that LD_LIBRARY_PATH
# stays what it is for the jobs that they start. CUDA's are taken from LD_LIBRARY_PATH first.
BUNDLED := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/bundled'
BUNDLED_ENGINE := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../bundled'
BUNDLED_CUDA := -Wl,--enable-new-dtags,-rpath,'$$ORIGIN/../bundled'

# Without the programs' libraries.
define link_guest
@mkdir -p $(@D)
$(call say,ld  $@)
$(Q)$(CC) $(LDFLAGS) $(GUEST) $^ -ldl -lpthread -o $@
endef

# Programs find the tree's files in a folder above them; those built elsewhere, through links.
LINKS := $(if $(filter $(CURDIR)/%,$(abspath $(BUILD))),,$(addprefix $(BUILD)/,suite plots))
$(LINKS):
	@mkdir -p $(@D)
	@ln -sfn $(CURDIR)/$(@F) $@
$(BUILD)/lockstep: | $(LINKS)

# lockstep-train contains nothing of the suite, lockstep-launch only the harness.
$(BUILD)/lockstep: $(call objects,suite/main.c) $(LIBS)
	$(call link,$(CC) -fopenmp $(BUNDLED),-ljpeg -lpng)
$(BUILD)/lockstep-train $(BUILD)/lockstep-collectives: $(BUILD)/lockstep-%: \
		$(BUILD)/obj/reference/%.c.o $(addprefix $(BUILD)/libls_,reference.a harness.a core.a)
	$(call link,$(CC) $(BUNDLED),-ljpeg -lpng)
# Bundles cJSON alone: libgomp is linked into it where the compiler has the archive, and of DEPS it keeps no path.
$(WHEEL): LDFLAGS := $(filter-out -Wl$(comma)-rpath$(comma)%,$(LDFLAGS))
$(WHEEL): $(call objects,suite/observe/wheel/main.c) $(LIBS)
	$(call link,$(CC) $(BUNDLED),$(or $(filter /%,$(shell $(CC) -print-file-name=libgomp.a)),-lgomp))
$(BUILD)/lockstep-launch: $(call objects,harness/launch.c) \
		$(addprefix $(BUILD)/libls_,harness.a core.a)
	$(call link,$(CC) $(BUNDLED))

# Backends and engines, loaded at run time.
# Loops that are compiled once more for each set of vector instructions.
VARIED := $(if $(filter x86_64,$(shell uname -m)),kernels/cpu/loops.c kernels/cpu/multi/multi_variant.c)
variants = $(foreach set,AVX2 AVX512,$(patsubst %,$(BUILD)/obj/%.$(set).o,$(1)))
define variant_rule
$(BUILD)/obj/%.c.$(1).o: %.c | needed
	@mkdir -p $$(@D)
	$$(call say,cc  $$< ($(1)))
	$$(Q)$$(CC) $$(CPPFLAGS) $$(CFLAGS) -DLS_VEC_$(1) -c $$< -o $$@
endef
$(foreach set,AVX2 AVX512,$(eval $(call variant_rule,$(set))))
$(BUILD)/lib/ls_cpu.so: $(call objects,$(CPU_FILES)) $(call variants,$(VARIED)) $(BUILD)/libls_core.a
	$(call link,$(CC) -shared -fopenmp $(BUNDLED_ENGINE),-ldnnl)
# The audit's kernels as loops over one element after the other (reference/oracle/audit/launch.h).
$(BUILD)/obj/%.cu.cpu.o: %.cu | needed
	@mkdir -p $(@D)
	$(call say,c++ $<)
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) -DLS_AUDIT_CPU -O3 -fopenmp -ffp-contract=off -x c++ -c $< -o $@
$(BUILD)/lib/ls_oracle_cpu.so: $(patsubst %,$(BUILD)/obj/%.cpu.o,$(AUDIT_KERNELS)) $(BUILD)/libls_core.a
	$(call link,$(CXX) -shared -fopenmp $(BUNDLED_ENGINE))
GLOO_FILES := $(addprefix reference/comm/,gloo.cc gloo_reduce.c comm.c)
$(BUILD)/lib/ls_gloo.so: $(call objects,$(GLOO_FILES)) $(addprefix $(BUILD)/libls_,harness.a core.a)
	$(call link,$(CXX) -shared $(BUNDLED_ENGINE),-lgloo)

# ---- CUDA --------------------------------------------------------------------------------------
cuda_folders = $(sort $(foreach part,$(1),$(call found_cuda,$(part)_INC)))
cuda_includes = $(addprefix -isystem ,$(filter-out /usr/include,$(call cuda_folders,$(1))))
cuda_libraries = $(foreach part,$(1),$(call found_cuda,$(part)_LIB) \
	-Wl$(comma)-rpath$(comma)$(dir $(call found_cuda,$(part)_LIB)))
CUDA_CODE := $(foreach arch,$(CUDA_ARCH),-gencode arch=compute_$(arch),code=sm_$(arch)) \
	-gencode arch=compute_$(lastword $(CUDA_ARCH)),code=compute_$(lastword $(CUDA_ARCH))
# -fmad=false: products and sums are rounded as they are written, as on the CPU.
NVCCFLAGS := -std=c++17 -O3 -lineinfo -fmad=false -Werror all-warnings \
	-Xcompiler -fPIC,-Wall,-Wextra,-Werror $(if $(filter-out g++,$(CXX)),-ccbin $(CXX))
# An undefined name is reported here instead of on the machine with the GPU. (The names of a
# sanitizer are defined by the program.)
WHOLE := $(if $(SANITIZE),,-Wl,--no-undefined)
# Beside the object: ptxas's report of registers and spills, and the PTX, for `make lint`.
compiled = $(BUILD)/obj/$*.cu
$(BUILD)/obj/%.cu.o $(BUILD)/obj/%.cu.ptxas $(BUILD)/obj/%.cu.ptx: %.cu | needed
	@mkdir -p $(compiled).kept
	$(call say,nvcc $<)
	$(Q)$(NVCC) $(CPPFLAGS) -MF $(compiled).d $(call cuda_includes,$(CUDA_HEADERS)) $(NVCCFLAGS) $(CUDA_CODE) \
		-Xptxas -v --keep --keep-dir $(compiled).kept -c $< -o $(compiled).o 2>$(compiled).ptxas || \
		{ cat $(compiled).ptxas >&2; exit 1; }
	@cat $(compiled).kept/*.ptx >$(compiled).ptx
	@rm -rf $(compiled).kept
$(call objects,$(CUDA_FILES)): EXTRA += $(call cuda_includes,$(CUDA_HEADERS) NVTX)
$(BUILD)/lib/ls_cuda.so: $(call objects,$(CUDA_FILES) $(CUDA_KERNELS)) $(BUILD)/libls_core.a
	$(call link,$(CXX) -shared $(WHOLE) $(BUNDLED_CUDA),$(call cuda_libraries,$(CUDA_PARTS)))
ORACLE_ROUNDING := reference/oracle/bits.c
$(BUILD)/lib/ls_oracle_cuda.so: $(call objects,$(ORACLE_KERNELS) $(ORACLE_ROUNDING)) \
		$(BUILD)/libls_core.a
	$(call link,$(CXX) -shared $(WHOLE) $(BUNDLED_CUDA),$(call cuda_libraries,CUDART))
NCCL_PARTS := $(NCCL_FILES) reference/comm/comm.c kernels/cuda/cuda_check.c
$(call objects,$(NCCL_FILES)): EXTRA += $(call cuda_includes,CUDART NCCL)
$(BUILD)/lib/ls_nccl.so: $(call objects,$(NCCL_PARTS)) $(addprefix $(BUILD)/libls_,harness.a core.a)
	$(call link,$(CC) -shared $(WHOLE) $(BUNDLED_CUDA),$(call cuda_libraries,CUDART NCCL))

# They are guests of a foreign process: nothing of it may be overridden but what they are for, NCCL may not unload the
# profiler with its last communicator, and CUDA and NCCL are those that the process has. A sanitizer would have to be
# the process's first library.
GUEST := -shared -fno-sanitize=all -Wl,-z,nodelete,--no-undefined
guest = $(call objects,$(addprefix suite/observe/collectives/,$(1)))
$(call guest,$(notdir $(wildcard suite/observe/collectives/*.c))): EXTRA += -fvisibility=hidden -fno-sanitize=all \
	$(call cuda_includes,CUDART NCCL CCCL)
$(BUILD)/lib/ls_nccl_profiler.so: $(call guest,profiler.c journal.c)
	$(call link_guest)
$(BUILD)/lib/ls_nccl_interpose.so: $(call guest,$(addprefix interpose_,nccl.c real.c comms.c samples.c) journal.c)
	$(call link_guest)

# ---- unit tests: one Check program for each suite/unit/*/test_*, all in build/unit ----------------
UNIT_LD = $(CC)
define link_unit
$(call link,$(UNIT_LD) -fopenmp -Wl$(comma)--start-group,$(UNIT_LIBS) -Wl$(comma)--end-group \
	-lcheck -lsubunit -lrt -ljpeg -lpng)
endef
define unit_rule
$(BUILD)/unit/%: $(BUILD)/obj/$(1)%$(2).o $(LIBS)
	$$(link_unit)
endef
$(foreach folder,$(wildcard suite/unit/*/),$(eval $(call unit_rule,$(folder),.c)))
$(eval $(call unit_rule,suite/unit/cuda/,.cc))
# These call single operations of the CPU backend, vector variants among them.
$(BUILD)/unit/test_multi: $(call objects,$(wildcard kernels/cpu/multi/*.c)) \
	$(call variants,$(filter %/multi_variant.c,$(VARIED)))
$(BUILD)/unit/test_observe_nccl: | $(BUILD)/lib/ls_nccl_profiler.so
CPU_TESTS := $(addprefix $(BUILD)/unit/,test_cpu_ops test_cpu_loops)
$(CPU_TESTS): $(call objects,$(CPU_FILES)) $(call variants,$(VARIED))
$(CPU_TESTS): UNIT_LIBS = -ldnnl
$(BUILD)/unit/fuzz: $(call objects,$(call sources,suite/unit/fuzz)) $(LIBS)
	$(call link,$(CC) -fopenmp,-ljpeg -lpng)
include suite/emulation/emulation.mk
.SECONDARY:

# ---- the jobs people run -----------------------------------------------------------------------
# suite/make/variables.def lists the variables that a target takes. given: those of make's command line,
# and those of the environment that the list has for it. with_given: a command with NAME=value arguments.
given = $(filter-out $(IN_COMMANDS),$(GIVEN)) $(filter $(call known,$(1)),$(INHERITED))
checked = @sh harness/variables.sh suite/make/variables.def $(1) $(call given,$(1))
with_given = $(call checked,$(1)) -- $(2)
set_up = @LS_BUILD=$(BUILD) sh harness/setup.sh
build = +@$(MAKE) --no-print-directory -s -j$$(nproc)
# Variables as options of a program: $(call option,SEED,seed) and, for those that are 0 or 1, flag.
option = $(if $($(1)),--$(2) "$$$(1)")
flag = $(if $(filter 1,$($(1))),--$(2))

bench:
	$(call checked,bench)
	$(set_up) bench "$$INSTALL"
	$(build) all
	$(call with_given,bench,$(BUILD)/lockstep bench)

check:
	$(call checked,check)
	$(set_up) check "$$INSTALL"
	$(build) all units
	@sh suite/unit/run.sh $(BUILD)

deps:
	$(set_up) deps yes

conform:
	$(call checked,conform)
	$(set_up) conform "$$INSTALL"
	$(build) all
	@$(BUILD)/lockstep conform $(call option,CLAIM,claim) $(call option,SUBJECT,subject) \
		$(call option,CASE,case) $(call option,LIST,list-file) $(call option,SEED,seed) \
		$(call option,SHARD,shard) $(call option,DEVICE,device) $(call option,OUT,out) \
		$(call option,BUDGET,budget) $(call option,RESUME,out) $(if $(RESUME),--resume) \
		$(call flag,FAIL_EARLY,fail-early) $(call flag,OVERWRITE,overwrite) \
		$(if $(GATE)$(SUBJECT),$(call option,GATE,gate),--gate manners) $(call flag,DRYRUN,list)

# DIRS becomes words of the command: variables.def lets pass no character that a shell interprets.
merge:
	$(call checked,merge)
	$(build) $(BUILD)/lockstep
	@$(BUILD)/lockstep merge $$DIRS $(call option,OUT,out)

# Planted faults: a build in which they can be switched on, and one for each that is a patch.
PATCHES := $(wildcard suite/plants/*.patch)
detect:
	$(call checked,detect)
	$(set_up) conform "$$INSTALL"
	$(build) all
	@$(BUILD)/lockstep detect --list $(call option,FAULT,fault) >/dev/null
	$(build) PLANTS=1 emulated
	@$(if $(PATCHES),sh suite/plants/build.sh $(BUILD) $(PATCHES))
	@$(BUILD)/lockstep detect $(call flag,FULL,full) $(call option,FAULT,fault) \
		$(call option,SEED,seed) $(call option,OUT,out) $(call option,PYTHON,python)

# Single changes of the code, each built in a copy of the tree.
mutate:
	$(call checked,mutate)
	$(set_up) check "$$INSTALL"
	$(build) all
	@sh suite/mutate/build.sh $(BUILD) "$$FILE"
	@$(BUILD)/lockstep mutate $(call option,N,n) $(call option,SEED,seed) $(call option,FILE,file) $(call option,SHARD,shard) \
		$(call option,OUT,out)

compare:
	$(call checked,compare)
	$(set_up) conform "$$INSTALL"
	$(build) all
	@$(BUILD)/lockstep versus $(call option,PYTHON,python) $(call option,PAIRS,pairs) \
		$(call option,ONLY,only) $(call option,OUT,out)

gpu-check:
	$(call with_given,gpu-check,sh suite/make/gpu_check.sh $(BUILD) $(if $(DEPS),DEPS=$(DEPS)))

peers:
	$(call checked,peers)
	$(set_up) conform "$$INSTALL"
	$(build) all
	@sh suite/peers/check.sh $(BUILD) "$$PYTHON"

help:
	@sed -n 's/^#: \{0,1\}//p' Makefile
#: make                 build all parts that this machine can build; list the libraries found
#: make bench NGPUS=8   the main job: train a matrix of jobs, judge them, report
#:                      (DRYRUN=1 lists the jobs; PROFILE=smoke takes a minute;
#:                      RESUME=results/runs/... continues an interrupted run)
#: make check           unit tests and the must-pass conformance cases
#: make conform         conformance cases (CLAIM=... SUBJECT="..." CASE=GLOB
#:                      BUDGET=10m)
#: make merge DIRS=...   the shards of a conformance run (SHARD=i/n) as one run
#: make detect          plant faults, each of which a case must catch, and run
#:                      PyTorch scripts with mistakes that users make (FAULT=GLOB;
#:                      PYTHON=... for the scripts; FULL=1 adds 100 clean passes)
#: make mutate N=100    single changes of the code: how many the tests catch
#: make compare         speed compared with PyTorch: same model, batch, threads, data
#: make gpu-check       everything that needs a GPU, in parts of under 8 minutes
#:                      (PART=build, correct, speed or peer), in one report
#: make peers           PyTorch as a subject, and the scripts with users' mistakes
#: make emulated        the CUDA backend compiled for the CPU, for tests: it runs
#:                      with --device cuda and LS_LIB_DIR=build/emulated/lib
#: make deps            install what the build needs (Debian, Ubuntu)
#: make lint | format   check the coding rules | format the sources
#: make asan | ubsan | tsan   unit tests and short jobs under a sanitizer
#: make limits          every command short of memory, files, processes or disk
#: make fuzz            500 hostile subjects and files (minutes), then mutated
#:                      input for every reader, for FUZZ_S=60 seconds
#:                      (COVERAGE=1: which of their lines were reached)
#: make wheel           `lockstep observe` for pip: build/dist/lockstep-*.whl
#: make dist | install  relocatable tarball | copy to PREFIX (/usr/local)
#: make clean           remove build/ (results stay)
#:
#: suite/make/variables.def lists the variables of each target, `build/lockstep
#: bench --help` those of bench. On a failure make ends with 2 and prints `Error N`
#: with the program's own exit code.

# ---- for developers ----------------------------------------------------------------------------
lint: units $(if $(HAVE_CUDA),$(CUDA_KERNELS:%=$(BUILD)/obj/%.ptxas))
	@sh suite/unit/lint.sh $(BUILD) $(HAVE_CUDA)
format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cc' '*.hh' '*.cu' '*.inc')
	if command -v ruff >/dev/null; then ruff format .; fi

# Each sanitizer has a build folder of its own.
asan ubsan tsan:
	$(call checked,check)
	$(set_up) check "$$INSTALL"
	$(build) BUILD=build/$@ OPTIMISE='-O1 -g' SANITIZE='$(SANITIZE_$@)' units
	@sh suite/unit/sanitize.sh build/$@ $@
# Mutated input for every reader of foreign files; a seed gives the same inputs each time. COVERAGE=1: without
# sanitizers, and which lines of the readers were reached.
FUZZ_BUILD := build/$(if $(filter 1,$(COVERAGE)),coverage,fuzz)
SANITIZE_build/fuzz := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
SANITIZE_build/coverage := --coverage
fuzz:
	$(call checked,fuzz)
	$(set_up) fuzz "$$INSTALL"
	$(build) $(PROGRAMS) $(BUILD)/unit/test_hostile $(filter %/ls_cpu.so %/ls_oracle_cpu.so %/ls_gloo.so,$(ENGINES))
	$(build) BUILD=$(FUZZ_BUILD) OPTIMISE='-O1 -g' SANITIZE='$(SANITIZE_$(FUZZ_BUILD))' $(FUZZ_BUILD)/unit/fuzz
	@sh suite/unit/fuzz/run.sh $(BUILD) $(FUZZ_BUILD) "$${FUZZ_S:-60}" "$${FUZZ_SEED:-1}"

# Every command under every lack of the machine; make check runs the short rows of it.
limits: programs
	@sh suite/unit/harness/limits.sh $(BUILD)

# The address sanitizer looks for C++'s throw at program start, before the engines that throw are
# loaded: libstdc++ is linked for that.
SANITIZE_asan := -fsanitize=address -fno-omit-frame-pointer \
	-Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state
SANITIZE_ubsan := -fsanitize=undefined -fno-sanitize-recover=undefined
SANITIZE_tsan := -fsanitize=thread

LOCKSTEP = $(DESTDIR)$(PREFIX)/lib/lockstep
install: all
	install -d $(LOCKSTEP)/lib $(LOCKSTEP)/plots $(DESTDIR)$(PREFIX)/bin
	install $(PROGRAMS) $(LOCKSTEP)
	install $(ENGINES) $(LOCKSTEP)/lib
	install -m 644 plots/*.gp $(LOCKSTEP)/plots
	for folder in claims lists peers; do \
		install -d $(LOCKSTEP)/suite/$$folder; \
		install -m 644 suite/$$folder/*.* $(LOCKSTEP)/suite/$$folder; done
	install -m 644 suite/requirements.txt $(LOCKSTEP)/suite
	sh harness/commit.sh $(LOCKSTEP)/suite/commit.txt
	for file in $$(find suite/observe/attach -name '*.py' ! -name 'test_*'); do \
		install -D -m 644 $$file $(LOCKSTEP)/$$file; done
	for program in $(notdir $(PROGRAMS)); do \
		ln -sf ../lib/lockstep/$$program $(DESTDIR)$(PREFIX)/bin/$$program; done
dist: all
	@sh harness/dist.sh $(BUILD)
wheel: $(WHEEL) $(OBSERVERS)
	@LD_LIBRARY_PATH=$(DEPS_LIB) python3 suite/observe/wheel/make.py $(BUILD) $(BUILD)/dist

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj $(BUILD)/emulated/obj -name '*.d' 2>/dev/null)
