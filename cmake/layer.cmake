# Each folder is a layer: hopmix_layer(NAME DEPS a b) builds the static library hopmix_NAME from the folder's *.cc and the
# test program NAME_test from its *_test.cc. New files are found automatically.
#   PIC    the layer is also linked into the operator library
#   TORCH  the layer uses hopmix/nn/torch.h, which is precompiled once and shared
add_library(hopmix_flags INTERFACE)
target_compile_options(hopmix_flags INTERFACE -Wall -Wextra -Wshadow)
target_include_directories(hopmix_flags INTERFACE ${PROJECT_SOURCE_DIR})

# Enable OpenMP by flag, not by library path, so that the wheel's libgomp is the only one at run time.
add_library(hopmix_openmp INTERFACE)
target_compile_options(hopmix_openmp INTERFACE ${OpenMP_CXX_FLAGS})
target_link_options(hopmix_openmp INTERFACE ${OpenMP_CXX_FLAGS})

# Links the wheel's C++ library; its headers are system headers, so that they cause no warnings.
function(hopmix_use_torch target)
  target_link_libraries(${target} PUBLIC ${TORCH_LIBRARIES})
  target_include_directories(${target} SYSTEM PUBLIC ${TORCH_INCLUDE_DIRS})
endfunction()

# Gives `target` the precompiled header. Files that do not include it are compiled without it, which is far faster.
function(hopmix_precompile target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    file(STRINGS ${source} uses REGEX "#include .(torch/|hopmix/(nn|train)/)")
    if(NOT uses)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  target_compile_options(${target} PRIVATE -fpch-preprocess -Winvalid-pch)
  if(TARGET hopmix_precompiled)
    target_precompile_headers(${target} REUSE_FROM hopmix_precompiled)
  endif()
endfunction()

if(HOPMIX_TORCH)
  file(WRITE ${PROJECT_BINARY_DIR}/precompiled.cc "")
  add_library(hopmix_precompiled STATIC ${PROJECT_BINARY_DIR}/precompiled.cc)
  target_link_libraries(hopmix_precompiled PRIVATE hopmix_flags hopmix_openmp)
  hopmix_use_torch(hopmix_precompiled)
  target_compile_options(hopmix_precompiled PRIVATE -fpch-preprocess -Winvalid-pch)
  target_precompile_headers(hopmix_precompiled PRIVATE ${PROJECT_SOURCE_DIR}/hopmix/nn/torch.h)
endif()

function(hopmix_layer name)
  cmake_parse_arguments(LAYER "PIC;TORCH" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$|/main\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")

  add_library(hopmix_${name} STATIC ${sources})
  target_link_libraries(hopmix_${name} PUBLIC hopmix_flags ${LAYER_DEPS})
  if(LAYER_PIC)
    set_target_properties(hopmix_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
  if(LAYER_TORCH)
    hopmix_use_torch(hopmix_${name})
    target_link_libraries(hopmix_${name} PUBLIC hopmix_openmp)
    hopmix_precompile(hopmix_${name})
  endif()

  if(HOPMIX_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE hopmix_${name} GTest::gtest_main)
    if(LAYER_TORCH)
      hopmix_precompile(${name}_test)
    endif()
    if(LAYER_TORCH)
      # Run all tests in one process: loading LibTorch takes longer than most of them.
      add_test(NAME ${name}_test COMMAND ${name}_test)
    else()
      gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 60 DISCOVERY_MODE PRE_TEST)
    endif()
  endif()
endfunction()
