# Lockstep: benchmark and conformance suite for data-parallel mixed-precision training.
# `make help` tells what there is. Set-up, builds, checks; the main job is `make bench NGPUS=8`.

BUILD ?= build
CC ?= gcc
CXX ?= g++
OPTIMISE ?= -O2 -g
WARN := -Wall -Wextra -Wpedantic -Werror
CPPFLAGS += -D_GNU_SOURCE -I. -MMD -MP
CFLAGS += -std=c11 $(OPTIMISE) -fPIC -fopenmp $(WARN) $(SANITIZE)
CXXFLAGS += -std=c++17 $(OPTIMISE) -fPIC $(WARN) $(SANITIZE)
LDFLAGS += $(SANITIZE)
LDLIBS := -lcjson -ldl -lm -lpthread

.DEFAULT_GOAL := all
.PHONY: all
.SUFFIXES:
.DELETE_ON_ERROR:

sources = $(wildcard $(addsuffix /*.c,$(1)))
objects = $(patsubst %,$(BUILD)/obj/%.o,$(1))

CORE := $(call sources,kernels/core) kernels/load.c
HARNESS := $(filter-out harness/launch.c,$(call sources,harness))
ORACLE := $(call sources,reference/oracle)
REFERENCE := $(filter-out reference/train.c,$(call sources,reference reference/data reference/comm))
SUITE := $(filter-out suite/main.c,$(call sources,suite suite/cases))
UNITS := $(patsubst suite/unit/%.c,%,$(wildcard suite/unit/test_*.c))

LIBS := $(BUILD)/libls_suite.a $(BUILD)/libls_oracle.a $(BUILD)/libls_reference.a \
	$(BUILD)/libls_harness.a $(BUILD)/libls_core.a

$(BUILD)/libls_core.a: $(call objects,$(CORE))
$(BUILD)/libls_harness.a: $(call objects,$(HARNESS))
$(BUILD)/libls_reference.a: $(call objects,$(REFERENCE))
$(BUILD)/libls_oracle.a: $(call objects,$(ORACLE))
$(BUILD)/libls_suite.a: $(call objects,$(SUITE))
$(BUILD)/libls_%.a:
	@mkdir -p $(@D)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/obj/%.c.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(EXTRA) -c $< -o $@
$(BUILD)/obj/%.cc.o: %.cc
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(EXTRA) -c $< -o $@

# Programs. The trainer does not know the suite; the launcher knows only the harness.
PROGRAMS := $(BUILD)/lockstep $(BUILD)/lockstep-train $(BUILD)/lockstep-launch
$(BUILD)/lockstep: $(call objects,suite/main.c) $(LIBS)
	$(CC) $(LDFLAGS) -fopenmp $^ -ljpeg $(LDLIBS) -o $@
$(BUILD)/lockstep-train: $(call objects,reference/train.c) $(BUILD)/libls_reference.a \
		$(BUILD)/libls_harness.a $(BUILD)/libls_core.a
	$(CC) $(LDFLAGS) $^ -ljpeg $(LDLIBS) -o $@
$(BUILD)/lockstep-launch: $(call objects,harness/launch.c) $(BUILD)/libls_harness.a $(BUILD)/libls_core.a
	$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

# Backends and engines, loaded at run time.
CPU := $(call sources,kernels/cpu kernels/math)
$(BUILD)/lib/ls_cpu.so: $(call objects,$(CPU)) $(BUILD)/libls_core.a
	@mkdir -p $(@D)
	$(CC) -shared $(LDFLAGS) -fopenmp $^ -ldnnl $(LDLIBS) -o $@
$(BUILD)/lib/ls_gloo.so: $(call objects,reference/comm/gloo.cc) $(BUILD)/libls_harness.a $(BUILD)/libls_core.a
	@mkdir -p $(@D)
	$(CXX) -shared $(LDFLAGS) $^ -lgloo $(LDLIBS) -o $@
ENGINES := $(BUILD)/lib/ls_cpu.so $(BUILD)/lib/ls_gloo.so

# Unit tests: suite/unit/test_X.c is one Check program.
$(BUILD)/unit/%: $(BUILD)/obj/suite/unit/%.c.o $(LIBS)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -fopenmp $^ -lcheck -lsubunit -lrt -ljpeg $(LDLIBS) -o $@
UNIT_PROGRAMS := $(addprefix $(BUILD)/unit/,$(UNITS))

all: $(PROGRAMS) $(ENGINES)
.PHONY: units
units: $(UNIT_PROGRAMS) $(ENGINES)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
