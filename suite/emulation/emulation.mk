# The CUDA backend compiled for the CPU, and the tests that run it there (included by the Makefile).

# ---- the emulated runtime, and on it the backend, the oracle's kernels and the NCCL engine -------
emulated_objects = $(patsubst %,$(BUILD)/emulated/obj/%.o,$(1))
$(BUILD)/emulated/obj/%.cu.o: %.cu | needed
	@mkdir -p $(@D)
	$(call say,c++ $< (emulated))
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) -DLS_CUDA_EMULATED -ffp-contract=off -Isuite/emulation/runtime \
		$(call cuda_includes,$(CUDA_HEADERS)) -x c++ -c $< -o $@
$(call objects,$(EMULATION)): EXTRA += -ffp-contract=off $(call cuda_includes,$(CUDA_HEADERS) NCCL)
# Matrix products and convolutions of whole trainings.
$(call objects,$(call sources,suite/emulation/cudnn)): EXTRA += -O3

EMULATED_RUNTIME := $(EMULATED_LIB)/libls_emulated.so
soname = -Wl,-soname,$(@F)
$(EMULATED_RUNTIME): $(call objects,$(EMULATION)) $(BUILD)/libls_core.a
	$(call link,$(CC) -shared $(soname))
EMULATED_ENGINES := $(addprefix $(EMULATED_LIB)/,ls_cuda.so ls_oracle_cuda.so ls_nccl.so)
$(EMULATED_LIB)/ls_cuda.so: $(call objects,$(CUDA_FILES)) $(call emulated_objects,$(CUDA_KERNELS)) \
	$(BUILD)/libls_core.a
$(EMULATED_LIB)/ls_oracle_cuda.so: $(call emulated_objects,$(ORACLE_KERNELS)) \
	$(call objects,$(ORACLE_ROUNDING)) $(BUILD)/libls_core.a
$(EMULATED_LIB)/ls_nccl.so: $(call objects,$(NCCL_PARTS)) $(addprefix $(BUILD)/libls_,harness.a core.a)
$(EMULATED_ENGINES): | $(EMULATED_RUNTIME)
	$(call link,$(CXX) -shared $(soname) $(WHOLE),$(EMULATED_RUNTIME) -Wl$(comma)-rpath$(comma)'$$ORIGIN')
$(addprefix $(EMULATED_LIB)/,ls_cpu.so ls_oracle_cpu.so ls_gloo.so): $(EMULATED_LIB)/%: $(BUILD)/lib/%
	@mkdir -p $(@D)
	@ln -sf ../../lib/$* $@

# ---- tests ---------------------------------------------------------------------------------------
unit_programs = $(addprefix $(BUILD)/unit/test_,$(1))
$(BUILD)/obj/suite/unit/cuda/test_%.c.o: EXTRA += $(call cuda_includes,$(CUDA_HEADERS))
$(BUILD)/obj/suite/unit/cuda/test_%.cc.o: EXTRA += -DLS_CUDA_EMULATED -ffp-contract=off \
	-Isuite/emulation/runtime $(call cuda_includes,CUDART)

CUDA_TESTS := $(addprefix $(BUILD)/unit/,$(filter test_cuda_%,$(UNITS)))
$(CUDA_TESTS): | $(EMULATED)
$(BUILD)/obj/suite/unit/cuda/test_cuda_observe.c.o: EXTRA += $(call cuda_includes,NCCL)
$(call unit_programs,cuda_observe): | $(BUILD)/lib/ls_nccl_interpose.so
# These load backends as programs do; a backend that is linked would hide the functions of the other.
LOADING_TESTS := $(call unit_programs,cuda_plan cuda_steps)
$(filter-out $(LOADING_TESTS),$(CUDA_TESTS)): \
	UNIT_LIBS = -Wl,-rpath,'$$ORIGIN/../emulated/lib' $(EMULATED_RUNTIME)
# These call kernels without the backend.
KERNEL_TESTS := $(call unit_programs,cuda_kernels cuda_layout cuda_norm cuda_multi)
$(KERNEL_TESTS): $(call emulated_objects,$(CUDA_KERNELS)) \
	$(call objects,$(addprefix kernels/cuda/cuda_,check.c memory.c wait.c))
$(call unit_programs,cuda_launch): $(call objects,kernels/cuda/cuda_check.c)
$(KERNEL_TESTS) $(call unit_programs,cuda_launch): UNIT_LD = $(CXX)
# The rest call the backend.
$(filter-out $(LOADING_TESTS) $(KERNEL_TESTS) $(call unit_programs,cuda_launch cuda_nccl cuda_observe),$(CUDA_TESTS)): \
	$(EMULATED_LIB)/ls_cuda.so

# Which engines the real cuDNN offers: a description of a device is enough for it to answer.
CUDNN_TESTS := $(call unit_programs,cudnn_engines cudnn_fused)
$(CUDNN_TESTS): $(call objects,$(wildcard kernels/cuda/conv/conv*.c*) kernels/cuda/conv/fuse.cu \
	$(addprefix kernels/cuda/cuda_,check.c memory.c wait.c))
$(CUDNN_TESTS): UNIT_LD = $(CXX)
$(CUDNN_TESTS): UNIT_LIBS = $(call cuda_libraries,CUDART CUDNN)

# NVIDIA's management library and driver, simulated from a text file; also in an old version.
FAKE_NVML := $(addprefix $(BUILD)/unit/,libfake_nvml.so libfake_nvml_old.so)
$(BUILD)/unit/libfake_nvml_old.so: EXTRA += -DLS_FAKE_OLD
$(FAKE_NVML): suite/emulation/fake_nvml.c harness/machine/nvml.h
	@mkdir -p $(@D)
	$(call say,ld  $@)
	$(Q)$(CC) -I. $(CFLAGS) $(EXTRA) -shared $< -o $@
$(BUILD)/unit/test_nvml: | $(FAKE_NVML) $(BUILD)/lockstep
