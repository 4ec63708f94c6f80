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
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wconversion -Wshadow
    # Exactness: no contraction the source does not spell out, and one instruction set everywhere.
    -ffp-contract=off -march=x86-64-v3
    # clang would fail on each omp simd loop it does not vectorise.
    $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
  if(KVSIM_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
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
