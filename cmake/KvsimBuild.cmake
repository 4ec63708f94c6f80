# Flags shared by every target, and the one way to declare a folder's library.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

function(kvsim_target target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  # Exactness: no contraction the source does not spell out, and one instruction set everywhere.
  set(host -Wall -Wextra -Wconversion -Wshadow -ffp-contract=off -march=x86-64-v3)
  if(KVSIM_WERROR)
    list(APPEND host -Werror)
  endif()
  # clang would fail on each omp simd loop it does not vectorise.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${host}>"
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wno-pass-failed>)
  list(JOIN host "," host_of_nvcc)
  # 20012, 20208: about annotations of Eigen and long double in fmt. Contraction in device code is as exact as on the host.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_of_nvcc};-Xcompiler=-fopenmp;--fmad=false;--expt-relaxed-constexpr;-diag-suppress=20012,20208>")
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  if(KVSIM_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  if(KVSIM_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE
                              "$<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/cmake/precompiled.h>")
  endif()
  if(KVSIM_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  endif()
  if(KVSIM_STATIC)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# kvsim_library(folder dependencies...): an OBJECT library, so that no self-registering file is
# dropped by the linker, with every .cpp below the folder (sim/cli/main.cpp is the program's).
function(kvsim_library folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  add_library(kvsim_${folder}_objects OBJECT ${sources})
  kvsim_target(kvsim_${folder}_objects)
  add_library(kvsim_${folder} INTERFACE)
  target_sources(kvsim_${folder} INTERFACE $<TARGET_OBJECTS:kvsim_${folder}_objects>)
  foreach(dependency ${ARGN})
    target_link_libraries(kvsim_${folder} INTERFACE kvsim_${dependency})
    if(TARGET kvsim_${dependency}_usage)
      target_link_libraries(kvsim_${folder}_objects PUBLIC kvsim_${dependency}_usage)
    else()
      target_link_libraries(kvsim_${folder}_objects PUBLIC kvsim_${dependency})
    endif()
  endforeach()
  # What compiling against the folder needs, without its objects.
  add_library(kvsim_${folder}_usage INTERFACE)
  foreach(dependency ${ARGN})
    if(TARGET kvsim_${dependency}_usage)
      target_link_libraries(kvsim_${folder}_usage INTERFACE kvsim_${dependency}_usage)
    else()
      target_link_libraries(kvsim_${folder}_usage INTERFACE kvsim_${dependency})
    endif()
  endforeach()
endfunction()
