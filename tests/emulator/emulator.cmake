# test_emulator: the kernels and the GPU tests' cases, compiled against the headers in include/,
# which stand for CUDA's and for kernels/device/ptx.cuh.
file(GLOB emulated_kernels CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/kernels/*/kernel.cu ${PROJECT_SOURCE_DIR}/kernels/santa/flash_kernel.cu
     ${PROJECT_SOURCE_DIR}/kernels/eta/build_records.cu ${PROJECT_SOURCE_DIR}/kernels/santapp/pack.cu
     ${PROJECT_SOURCE_DIR}/kernels/santapp/published_kernel.cu)
foreach(source oracle kv_copies feature_copy kept_states screening)  # the others time kernels
  list(APPEND emulated_kernels ${PROJECT_SOURCE_DIR}/kernels/measure/${source}.cu)
endforeach()
set_source_files_properties(${emulated_kernels} PROPERTIES LANGUAGE CXX)
file(GLOB emulator_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/emulator/*.cpp)

add_executable(test_emulator ${emulated_kernels} ${emulator_sources}
               kernels/gpu/gpu_case.cpp kernels/gpu/check_case.cpp kernels/gpu/team_corrections.cpp)
if(NOT KVSIM_SANITIZE)  # which would take minutes
  target_sources(test_emulator PRIVATE kernels/gpu/test_eta_records_on_gpu.cpp)
endif()
target_include_directories(test_emulator BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/emulator/include)
kvsim_target(test_emulator)
# Kernels read words as vectors of others, as nvcc lets them, ask for loops to be unrolled, and mix
# int and unsigned, which is -Wconversion to clang alone.
target_compile_options(test_emulator PRIVATE -O1 -fno-strict-aliasing -Wno-unknown-pragmas
  $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>)
if(KVSIM_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Of undefined behaviour only vectors that are not aligned: the rest would double the compile time.
  target_compile_options(test_emulator PRIVATE -fno-sanitize=undefined -fsanitize=alignment)
endif()
# The instances for SMs with large shared memory.
target_compile_definitions(test_emulator PRIVATE __CUDA_ARCH_LIST__=900
  KVSIM_EMULATED_EVERY=$<IF:$<BOOL:${KVSIM_SANITIZE}>,8,1>)
target_link_libraries(test_emulator PRIVATE kvsim_kernels Catch2::Catch2WithMain)
catch_discover_tests(test_emulator TEST_PREFIX "emulator: " PROPERTIES TIMEOUT 300)
